"""Folders of HuggingFace's layout: every family, by the logits that transformers gives for the same weights.

What is kept of a family (`golden_families/`) was made by `agreement_with_transformers.py`; weights follow from names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_families import DTYPES, GOLDEN, IDS, KEPT, MODELS, weights, write_safetensors, write_tokenizer

import kernelyard
import kernelyard_llm
from kernelyard_llm import LanguageModelError, ModelFileError, TokenizerError
from kernelyard_llm.description import Description
from kernelyard_llm.from_huggingface import huggingface_config
from kernelyard_llm.safetensors import Arrays

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def kept(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def folder_of(name: str, folder: Path, shards: int = 1) -> Path:
    """Write a model as transformers would."""
    found, stored = kept(name), MODELS[name][2]
    (folder / "config.json").write_text(json.dumps(found["config"]), encoding="utf-8")
    arrays = list(weights(found["shapes"], stored).items())
    if shards == 1:
        write_safetensors(folder / "model.safetensors", dict(arrays))
    else:
        index = {}
        for number in range(shards):
            path = folder / f"model-{number}.safetensors"
            write_safetensors(path, dict(arrays[number::shards]))
            index |= dict.fromkeys([each for each, _ in arrays[number::shards]], path.name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")
    write_tokenizer(folder, template=TEMPLATE)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = kernelyard_llm.load(folder_of(name, tmp_path), threads=1)
    expected = np.asarray(kept(name)["logits"])
    np.testing.assert_allclose(model.logits(IDS)[list(KEPT)], expected, atol=3e-5 * np.abs(expected).max())
    last = model.generate(IDS[:-1], max_new_tokens=1, ignore_eos=True)
    assert last == [int(model.logits(IDS[:-1])[-1].argmax())]


@pytest.mark.parametrize("stored", ["BF16", "F16"])
def test_narrow_weights_stay_narrow(stored: str, tmp_path: Path) -> None:
    larger = {64: 256, 32: 128, 96: 256}
    shapes = {name: [larger[size] for size in shape] for name, shape in kept("llama")["shapes"].items()}
    sizes = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 256, "head_dim": 64}
    config = json.dumps({**kept("llama")["config"], **sizes, "num_hidden_layers": 1})
    arrays = weights({name: shape for name, shape in shapes.items() if "layers.1" not in name}, stored)
    models = []
    for each in (stored, "F32"):
        folder = tmp_path / each
        folder.mkdir()
        (folder / "config.json").write_text(config, encoding="utf-8")
        write_safetensors(
            folder / "model.safetensors", {name: array.astype(DTYPES[each]) for name, array in arrays.items()}
        )
        write_tokenizer(folder, 200)
        models.append(kernelyard_llm.load(folder, threads=1))
    narrow, wide = models
    matrices = [each for each in narrow.executable.constants.values() if each.size >= 256 * 256]
    assert {each.dtype for each in matrices} == {DTYPES[stored]}
    expected = wide.logits(IDS)
    np.testing.assert_allclose(narrow.logits(IDS), expected, atol=1e-5 * np.abs(expected).max())


def test_experts_that_no_token_uses_are_not_computed(tmp_path: Path) -> None:
    """Weights that are no numbers show which ones are: those of two of four experts, for one token."""
    finite = []
    for expert in range(4):
        folder = tmp_path / str(expert)
        folder.mkdir()
        folder_of("mixtral", folder)
        arrays = weights(kept("mixtral")["shapes"], "F32")
        for name, array in arrays.items():
            if f"layers.0.block_sparse_moe.experts.{expert}." in name:
                array[...] = np.nan
        write_safetensors(folder / "model.safetensors", arrays)
        logits = kernelyard_llm.load(folder, threads=1).logits(IDS[:1])
        finite.append(bool(np.isfinite(logits).all()))
    assert sorted(finite) == [False, False, True, True]


def test_shards_and_a_saved_model(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    folder = folder_of("qwen2", tmp_path / "x", shards=3)
    write_safetensors(folder / "consolidated.safetensors", {"other": np.zeros(3, np.float32)})
    model = kernelyard_llm.load(folder, threads=1)
    expected = np.asarray(kept("qwen2")["logits"])
    np.testing.assert_allclose(model.logits(IDS)[list(KEPT)], expected, atol=3e-5 * np.abs(expected).max())
    assert model.encode("ab") == [1, *model.encode("ab")[1:]]
    assert model.tokenizer.ends == (2,)
    messages = [{"role": "user", "content": "ab"}]
    assert model.prompt(messages) == model.encode("ab")[1:]
    model.save(tmp_path / "x.kyar")
    again = kernelyard_llm.load(tmp_path / "x.kyar", threads=1)
    assert again.chat(messages, max_new_tokens=5) == model.chat(messages, max_new_tokens=5)
    assert again.description.bytes_per_token == model.description.bytes_per_token > 0


def test_compile_reads_a_folder(tmp_path: Path) -> None:
    executable = kernelyard.compile(folder_of("llama", tmp_path))
    assert kernelyard_llm.from_executable(executable).config.family == "llama"


def test_what_a_folder_lacks(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match="no language model"):
        kernelyard_llm.load(tmp_path)
    folder_of("llama", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="no tokenizer"):
        kernelyard_llm.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match="no weights"):
        kernelyard_llm.load(tmp_path)
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ModelFileError, match="no object"):
        kernelyard_llm.load(tmp_path)


def test_weights_of_another_configuration(tmp_path: Path) -> None:
    folder_of("llama", tmp_path)
    config = {**kept("llama")["config"], "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelFileError, match="do not fit"):
        kernelyard_llm.load(tmp_path)


def test_an_index_stays_in_its_folder(tmp_path: Path) -> None:
    folder_of("llama", tmp_path)
    index = {"weight_map": {"x": "../other.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelFileError, match="outside"):
        kernelyard_llm.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "rwkv"}, "architecture"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
        ({"clip_qkv": 8.0}, "setting"),
        ({"rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "rotary"),
        ({"hidden_act": "quick_gelu"}, "activation"),
    ],
)
def test_other_networks_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(LanguageModelError, match=message):
        huggingface_config({**kept("llama")["config"], **change}, "here")


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "vocab_size", "rms_norm_eps"])
@pytest.mark.parametrize("value", [None, "many", [], -1])
def test_a_damaged_configuration(name: str, value: object) -> None:
    given = {**kept("llama")["config"], name: value}
    with pytest.raises(ModelFileError, match="configuration"):
        huggingface_config(given, "here")


DEEP = b"[" * 100_000


@pytest.mark.parametrize("layers", [1_000_000_000, 1 << 62])
def test_more_layers_than_any_network_has_are_refused(layers: int) -> None:
    with pytest.raises(ModelFileError, match="configuration"):
        huggingface_config({**kept("llama")["config"], "num_hidden_layers": layers}, "here")


@pytest.mark.parametrize(
    "head", [DEEP, b'{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}', b'{"a": 1}', b"{"]
)
def test_a_damaged_head_of_safetensors_is_refused(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    with pytest.raises(ModelFileError):
        Arrays([path])


@pytest.mark.parametrize("text", [DEEP.decode(), "{}", "[]", "1e999"])
def test_a_damaged_description_is_refused(text: str) -> None:
    with pytest.raises(ModelFileError, match="description"):
        Description.from_json(text)
