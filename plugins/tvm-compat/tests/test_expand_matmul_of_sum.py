"""ExpandMatmulOfSum: the scenarios of TVM's test_transform_expand_matmul_of_sum.py by name, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_tvm_compat.adjust_matmul_order import AdjustMatmulOrder
from kernelyard_tvm_compat.expand_matmul_of_sum import ExpandMatmulOfSum

EXPAND = ExpandMatmulOfSum()


def test_simple(check) -> None:
    b = FunctionBuilder()
    x, v, w = b.input("x", (dims.symbol("n"), 4)), b.input("v", (4, 5)), b.input("w", (4, 5))
    function = check(EXPAND, b.function(b.op("matmul", x, b.op("add", v, w))))
    assert check.ops(function) == ["matmul", "matmul", "add"]


def test_no_expansion_of_compile_time_addition() -> None:
    b = FunctionBuilder()
    x = b.input("x", (3, 4))
    v, w = np.ones((4, 5), np.float32), b.op("tanh", np.ones((4, 5), np.float32))
    module = IRModule({"main": b.function(b.op("matmul", x, b.op("add", w, v)))})
    assert EXPAND(module) is module


def test_expansion_of_runtime_addition(check) -> None:
    """An adapter of low rank: with AdjustMatmulOrder the thin factors are never multiplied with each other."""
    b = FunctionBuilder()
    x, down, up = b.input("x", (3, 16)), b.input("down", (16, 2)), b.input("up", (2, 16))
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    function = b.function(b.op("matmul", x, b.op("add", b.op("matmul", down, up), weight)))
    expanded = check(EXPAND, function)
    assert check.ops(expanded) == ["matmul", "matmul", "matmul", "add"]
    adjusted = check(AdjustMatmulOrder(), expanded)
    shapes = [b.var.tensor_type.shape for b in adjusted.bindings]
    assert (16, 16) not in shapes
    assert (3, 2) in shapes


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4)])
def test_rhs_permute_dims(check, shape) -> None:
    axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    b = FunctionBuilder()
    x, v, w = b.input("x", (3, 4)), b.input("v", shape), b.input("w", shape)
    function = b.function(b.op("matmul", x, b.op("permute_dims", b.op("add", v, w), axes=axes)))
    expanded = check(EXPAND, function)
    assert check.ops(expanded) == ["permute_dims", "matmul", "permute_dims", "matmul", "add"]


def test_batches_may_broadcast_and_matrices_may_not(check) -> None:
    """x @ row is no matrix product: TVM makes an invalid call of the sum of a matrix and a row."""

    def build(shape) -> FunctionBuilder:
        b = FunctionBuilder()
        x, v, w = b.input("x", (3, 4)), b.input("v", (4, 5)), b.input("w", shape)
        return b.function(b.op("matmul", x, b.op("add", v, w)))

    assert check.ops(check(EXPAND, build((2, 4, 5)))) == ["matmul", "matmul", "add"]
    for shape in ((5,), (1, 5), (4, 1), ()):
        module = IRModule({"main": build(shape)})
        assert EXPAND(module) is module, shape


def test_a_sum_that_is_needed_anyway_stays() -> None:
    b = FunctionBuilder()
    x, v, w = b.input("x", (3, 4)), b.input("v", (4, 5)), b.input("w", (4, 5))
    total = b.op("add", v, w)
    module = IRModule({"main": b.function(b.op("matmul", x, total), total)})
    assert EXPAND(module) is module


SCENARIOS = {
    "ExpandMatmulOfSum: simple": test_simple,
    "ExpandMatmulOfSum: no expansion of compile-time addition": test_no_expansion_of_compile_time_addition,
    "ExpandMatmulOfSum: expansion of runtime addition": test_expansion_of_runtime_addition,
    "ExpandMatmulOfSum: RHSPermuteDims": test_rhs_permute_dims,
}
