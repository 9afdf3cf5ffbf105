"""ReorderTakeAfterMatmul: the scenarios of TVM's test_transform_reorder_take_after_matmul.py by name, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import Function, FunctionBuilder, IRModule
from kernelyard.ops.samples import draw_numbers
from kernelyard_tvm_compat.reorder_take_after_matmul import ReorderTakeAfterMatmul

REORDER = ReorderTakeAfterMatmul()
N, T = dims.symbol("n"), dims.symbol("t")


def looked_up(x: tuple, weights: tuple, indices: tuple, axis: int) -> Function:
    b = FunctionBuilder()
    inputs = b.input("x", x), b.input("weights", weights), b.input("indices", indices, "int64")
    return b.function(b.op("matmul", inputs[0], b.op("take", *inputs[1:], axis=axis)))


def inputs_of(function: Function, **sizes: int) -> list[np.ndarray]:
    x, weights, indices = ([dims.evaluate(d, sizes) for d in p.tensor_type.shape] for p in function.params)
    table = weights[-1] if len(weights) == 2 else weights[0]
    chosen = np.random.default_rng(0).integers(-table, table, indices)
    return [draw_numbers(*x, seed=1), draw_numbers(*weights, seed=2), chosen]


@pytest.mark.parametrize("x", [(1, 16), (16,)])
def test_simple(check, x) -> None:
    function = looked_up(x, (16, T), (32,), axis=1)
    after = check(REORDER, function, inputs_of(function, t=7))
    assert check.ops(after) == ["matmul", "take"]


def test_batched_activations(check) -> None:
    function = looked_up((N, 1, 16), (16, T), (32,), axis=1)
    after = check(REORDER, function, inputs_of(function, t=7, n=3))
    assert check.ops(after) == ["matmul", "take"]
    assert after.bindings[1].value.attrs["axis"] == 2


@pytest.mark.parametrize("batch", [12, N])
def test_batched_activations_and_weights(check, batch) -> None:
    """Static and dynamic: each batch takes its own matrix from a table, as many adapters at once do."""
    function = looked_up((batch, 2, 16), (T, 16, 32), (batch,), axis=0)
    after = check(REORDER, function, inputs_of(function, t=4, n=3))
    assert check.ops(after) == [
        *("permute_dims", "reshape", "matmul", "reshape"),
        *("permute_dims", "reshape", "gather_nd"),
    ]


@pytest.mark.parametrize(
    ("x", "weights", "indices", "axis"),
    [
        pytest.param((3, 16), (7, 32), (16,), 0, id="rows of a matrix"),
        pytest.param((16,), (20,), (16,), 0, id="parts of a vector"),
        pytest.param((1, 2, 16), (7, 16, 8), (5,), 0, id="one image for all matrices"),
        pytest.param((5, 2, 16), (7, 16, 8), (1,), 0, id="one matrix for all images"),
        pytest.param((4, 5, 2, 16), (7, 16, 8), (5,), 0, id="more batches"),
        pytest.param((3, 16), (16, 7), (2, 3), 1, id="indices of two axes"),
    ],
)
def test_other_products_stay(x, weights, indices, axis) -> None:
    """Some of these TVM rewrites to what computes something else, or cannot be typed."""
    b = FunctionBuilder()
    operands = b.input("x", x), b.input("weights", weights), b.input("indices", indices, "int64")
    taken = b.op("take", *operands[1:], axis=axis)
    if len(indices) == 2:
        taken = b.op("reshape", taken, shape=(16, 6))
    module = IRModule({"main": b.function(b.op("matmul", operands[0], taken))})
    assert REORDER(module) is module


def test_weights_that_are_needed_anyway_are_taken_once() -> None:
    b = FunctionBuilder()
    x, weights, indices = b.input("x", (3, 16)), b.input("w", (16, 7)), b.input("i", (4,), "int64")
    taken = b.op("take", weights, indices, axis=1)
    module = IRModule({"main": b.function(b.op("matmul", x, taken), taken)})
    assert REORDER(module) is module


SCENARIOS = {
    "ReorderTakeAfterMatmul: simple": test_simple,
    "ReorderTakeAfterMatmul: batched activations": test_batched_activations,
    "ReorderTakeAfterMatmul: batched activations and weights, static and dynamic": test_batched_activations_and_weights,
}
