"""Folders that transformers saves, by transformers' logits; and the logits that `test_families.py` compares with.

`make test-torch` runs this file by its name; `python plugins/llm/tests/agreement_with_transformers.py` writes
`golden_families/` anew: of every family its `config.json`, the names and sizes of its weights, and a few logits.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_families import GOLDEN, IDS, KEPT, MODELS, weight, write_tokenizer

import kernelyard_llm


def made(name: str) -> Any:
    """Return transformers' model of a name, in float32, with the weights that follow from their names."""
    kind, given, stored = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **given)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with TemporaryDirectory() as folder:  # names and sizes are those of the file, not of the module
        model.save_pretrained(folder)
        from safetensors import safe_open

        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {each: tuple(file.get_slice(each).get_shape()) for each in file.keys()}  # noqa: SIM118
        arrays = {each: weight(each, shape, stored) for each, shape in shapes.items()}
        from safetensors.torch import save_file

        floats = {each: torch.from_numpy(array.astype(np.float32)) for each, array in arrays.items()}
        save_file(floats, Path(folder) / "model.safetensors", {"format": "pt"})
        again = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )
    return again.eval(), shapes


def logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_that_transformers_saved(name: str, tmp_path: Path) -> None:
    model, _ = made(name)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    write_tokenizer(tmp_path)
    expected = logits(model)
    found = kernelyard_llm.load(tmp_path, threads=1).logits(IDS)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_the_kept_logits_are_those_of_transformers(name: str) -> None:
    kept = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    model, shapes = made(name)
    assert {each: tuple(shape) for each, shape in kept["shapes"].items()} == shapes
    np.testing.assert_allclose(logits(model)[list(KEPT)], kept["logits"], atol=1e-4)


def write() -> None:
    """Write what is kept of every family."""
    GOLDEN.mkdir(exist_ok=True)
    for name in MODELS:
        model, shapes = made(name)
        numbers = [[round(float(each), 5) for each in row] for row in logits(model)[list(KEPT)]]
        config = json.loads(model.config.to_json_string(use_diff=False))
        config.pop("_name_or_path", None)
        kept = {"config": config, "shapes": shapes, "logits": numbers}
        (GOLDEN / f"{name}.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
