"""FactorReductions: extrema of whole tensors by rows."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.tir import PrimFunc
from kernelyard.transform.lowering.factor_reductions import FactorReductions
from kernelyard.transform.pipelines import get_pipeline

LARGE = (1, 12, 10, 96)


def axes_of_reductions(function) -> list[tuple[int, ...]]:
    return [binding.value.attrs["axes"] for binding in function.bindings if "axes" in binding.value.attrs]


@pytest.mark.parametrize("axes", [(), (0, 1, 2, 3)])
@pytest.mark.parametrize("op", ["max", "min"])
def test_rows_first(op, axes, check):
    function = check.of(lambda b, x: b.op(op, x, axes=axes), LARGE)
    found = check(FactorReductions(), function)
    assert check.ops(found) == [op, op]
    assert axes_of_reductions(found) == [(3,), (0, 1, 2)]


def test_the_longest_rows_of_which_there_are_enough(check):
    function = check.of(lambda b, x: b.op("max", x), (2, 40, 8, 16))
    assert axes_of_reductions(check(FactorReductions(), function))[0] == (2, 3)


def test_dims_may_be_kept(check):
    function = check.of(lambda b, x: b.op("max", x, keepdims=True), LARGE)
    assert check.ops(check(FactorReductions(), function)) == ["max", "max", "reshape"]


def test_nan_and_infinity(check):
    values = np.linspace(-1, 1, 2 * 64 * 96, dtype=np.float32).reshape(2, 64, 96)
    values[1, 30, 5], values[0, 3, 3] = np.nan, np.inf
    function = check.of(lambda b, x: b.op("max", x), values.shape)
    assert check.ops(check(FactorReductions(), function, [values])) == ["max", "max"]


STAY = {
    "some axes": ("max", (0, 1, 2), LARGE, "float32"),
    "sums": ("sum", (), LARGE, "float32"),
    "small": ("max", (), (64, 96), "uint8"),
    "few rows": ("max", (), (8, 4096), "float32"),
    "short rows": ("max", (), (4096, 8), "float32"),
    "a vector": ("max", (), (65536,), "float32"),
    "symbolic": ("max", (), (dims.symbol("n"), 64, 96), "float32"),
}


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name, check):
    op, axes, shape, dtype = STAY[name]
    function = check.of(lambda b, x: b.op(op, x, axes=axes), shape, dtype)
    assert check(FactorReductions(), function) is function


def test_both_extrema_read_a_row_once():
    b = FunctionBuilder()
    x = b.input("x", LARGE)
    module = IRModule({"main": b.function(b.op("subtract", b.op("max", x), b.op("min", x)))})
    legal = get_pipeline("legalize")(module)
    readers = [f for f in legal.functions.values() if isinstance(f, PrimFunc) and f.inputs[0].shape == LARGE]
    assert [function.num_outputs for function in readers] == [2]
