"""`compile(..., precision=...)`: what is asked for is done, said, saved, and refused where there is no such thing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.driver.precision import PRECISIONS, get_precision
from kernelyard.errors import OptionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import evaluate

RNG = np.random.default_rng(7)


def weights(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def mlp() -> IRModule:
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("add", b.op("matmul", b.input("x", (4, 64)), weights(64, 32)), weights(32)))
    return IRModule({"main": b.function(b.op("matmul", y, weights(32, 16)))})


X = RNG.standard_normal((4, 64)).astype(np.float32)


def test_float32_changes_nothing() -> None:
    module = mlp()
    assert get_precision("float32").apply(module) is module
    assert ky.compile(module, precision="float32").precision == ky.compile(module).precision == "float32"


@pytest.mark.parametrize("name", ["bf16"])
def test_a_program_says_its_precision_and_keeps_its_types(name: str, tmp_path: Path) -> None:
    module = mlp()
    exe = ky.compile(module, precision=name)
    exe.save(tmp_path / "model.kyar")
    (expected,) = evaluate(module, [X])
    for each in (exe, ky.load(tmp_path / "model.kyar")):
        assert each.precision == each.report.precision == name
        assert each.report.summary.startswith(name)
        assert [info.dtype for info in (*each.inputs, *each.outputs)] == ["float32", "float32"]
        result = each(X).numpy()
        assert not np.array_equal(result, expected)
        np.testing.assert_allclose(result, expected, atol=0.05 * np.abs(expected).max())
    assert ky.explain(module, precision=name).precision == name


def test_weights_of_bfloat16_take_half_the_file(tmp_path: Path) -> None:
    for name in ("float32", "bf16"):
        ky.compile(mlp(), precision=name, backends=[]).save(tmp_path / name)
    arrays = ky.load(tmp_path / "bf16").constants.values()
    assert {str(array.dtype) for array in arrays} == {"bfloat16"}
    wide = ky.load(tmp_path / "float32").constants.values()
    assert 2 * sum(array.nbytes for array in arrays) == sum(array.nbytes for array in wide)


@pytest.mark.parametrize("name", ["bf15", "bfloat16", "", 16, None, ["bf16"]])
def test_what_is_no_precision_is_refused(name: object) -> None:
    with pytest.raises(OptionError) as error:
        ky.compile(mlp(), precision=name)  # pyright: ignore[reportArgumentType]
    assert all(known in str(error.value) for known in PRECISIONS)
    with pytest.raises(OptionError):
        ky.explain(mlp(), precision=name)  # pyright: ignore[reportArgumentType]
