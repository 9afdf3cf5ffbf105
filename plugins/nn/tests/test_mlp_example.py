"""The example runs with a library and without one, and its artifact loads again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import kernelyard as ky

SCRIPT = Path(__file__).parents[3] / "examples" / "mlp" / "mlp.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mlp", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("backends", "summary"), [("dnnl", "dnnl 5/5 ops"), ("", "native-cpu 5/5 ops")])
def test_the_example_runs(example: ModuleType, capsys, tmp_path: Path, backends: str, summary: str) -> None:
    artifact = tmp_path / "mlp.kyar"
    assert example.main(["--backends", backends, "--save", str(artifact)]) == 0
    assert summary in capsys.readouterr().out
    check(example, artifact)


@pytest.mark.parametrize(("backends", "summary"), [("dnnl", "extern"), ("", "native-cpu 5/5 ops")])
def test_the_stages_by_hand(example: ModuleType, capsys, tmp_path: Path, backends: str, summary: str) -> None:
    artifact = tmp_path / "mlp.kyar"
    assert example.main(["--by-hand", "--backends", backends, "--save", str(artifact)]) == 0
    assert summary in capsys.readouterr().out
    assert any(module.kind == "dnnl" for module in ky.load(artifact).modules) is bool(backends)
    check(example, artifact)


def check(example: ModuleType, artifact: Path) -> None:
    loaded = ky.load(artifact)
    assert [(info.name, info.shape) for info in loaded.inputs] == [("x", ("n", 784))]
    x = np.random.default_rng(3).random((2, 784), np.float32)
    expected = example.in_numpy(example.random_model(), x)
    np.testing.assert_allclose(loaded(x).numpy(), expected, rtol=1e-4, atol=1e-5)
