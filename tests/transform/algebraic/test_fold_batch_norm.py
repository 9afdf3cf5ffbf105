"""Folding of batch norm and of constant scales and shifts into weights, and batch norm as multiply and add."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import Constant, FunctionBuilder
from kernelyard.ops.samples import floats
from kernelyard.transform.algebraic.fold_batch_norm import FoldBatchNorm
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination
from kernelyard.transform.simplify.simplify_inference import SimplifyInference

N = dims.symbol("n")
PASS = Sequential([FoldBatchNorm(), DeadCodeElimination()])


def vectors(count: int, channels: int, dtype: str = "float32"):
    return [floats(channels, seed=seed, dtype=dtype) for seed in range(count)]


def batch_norm(b, x, channels: int, axis: int = 1, dtype: str = "float32"):
    variance = floats(channels, low=0.5, high=2, seed=9, dtype=dtype)
    return b.op("nn.batch_norm", x, *vectors(3, channels, dtype), variance, epsilon=1e-3, axis=axis)


def image(rank: int):
    return (N, 4, 7, 6, 5)[: rank + 2]


# name: (shape of x, weight, attributes, op, shape of a bias per channel)
LINEARS = {
    "conv1d": (image(1), floats(8, 4, 3), {}, "nn.conv1d", (1, 8, 1)),
    "conv2d": (image(2), floats(8, 4, 3, 3), {"padding": (1, 1, 1, 1)}, "nn.conv2d", (1, 8, 1, 1)),
    "conv2d grouped": (image(2), floats(8, 2, 3, 3), {"groups": 2}, "nn.conv2d", (8, 1, 1)),
    "conv2d depthwise": (image(2), floats(4, 1, 3, 3), {"groups": 4}, "nn.conv2d", (4, 1, 1)),
    "conv3d": (image(3), floats(8, 4, 2, 2, 2), {}, "nn.conv3d", (8, 1, 1, 1)),
    "conv1d_transpose": (image(1), floats(4, 8, 3), {}, "nn.conv1d_transpose", (8, 1)),
    "conv2d_transpose": (image(2), floats(4, 8, 3, 3), {"strides": (2, 2)}, "nn.conv2d_transpose", (8, 1, 1)),
    "conv2d_transpose grouped": (image(2), floats(4, 3, 3, 3), {"groups": 2}, "nn.conv2d_transpose", (6, 1, 1)),
    "matmul": ((N, 6), floats(6, 8), {}, "matmul", (8,)),
    "matmul of batches": ((N, 3, 6), floats(3, 6, 8), {}, "matmul", (1, 8)),
}


def linear(b, name: str):
    shape, weight, attrs, op, per_channel = LINEARS[name]
    return b.op(op, b.input("x", shape), weight, **attrs), per_channel


@pytest.mark.parametrize("name", LINEARS)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_scale_and_shift(check, name, with_bias):
    b = FunctionBuilder()
    y, per_channel = linear(b, name)
    if with_bias:
        y = b.op("add", y, floats(*per_channel, seed=3))
    y = b.op("multiply", y, floats(*per_channel, seed=4))
    y = b.op("add", y, floats(*per_channel, seed=5))
    assert check.ops(check(PASS, b.function(y))) == [LINEARS[name][3], "add"]


@pytest.mark.parametrize("name", [name for name in LINEARS if name.startswith("conv")])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_batch_norm(check, name, with_bias):
    b = FunctionBuilder()
    y, per_channel = linear(b, name)
    if with_bias:
        y = b.op("add", Constant(floats(*per_channel, seed=3)), y)
    after = check(PASS, b.function(batch_norm(b, y, max(per_channel))))
    assert check.ops(after) == [LINEARS[name][3], "add"]
    bias = after.bindings[-1].value.args[1].data
    assert bias.shape == (1, max(per_channel), *[1] * (after.result.tensor_type.rank - 2))


def test_batch_norm_after_a_matrix_product(check):
    b = FunctionBuilder()
    y = batch_norm(b, b.op("matmul", b.input("x", (N, 6)), floats(6, 8)), 8)
    after = check(PASS, b.function(y))
    assert check.ops(after) == ["matmul", "add"]
    assert after.bindings[-1].value.args[1].data.shape == (8,)


STEPS = {
    "scalar": lambda b, y: b.op("multiply", y, 0.5),
    "quotient": lambda b, y: b.op("divide", y, floats(8, 1, 1, low=1)),
    "difference": lambda b, y: b.op("subtract", b.op("multiply", y, 2.0), floats(8, 1, 1)),
    "constant first": lambda b, y: b.op("multiply", Constant(floats(1, 8, 1, 1)), y),
    "sign": lambda b, y: b.op("negative", y),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(check, name):
    b = FunctionBuilder()
    y, _ = linear(b, "conv2d")
    assert check.ops(check(PASS, b.function(STEPS[name](b, y))))[:2] in (["nn.conv2d"], ["nn.conv2d", "subtract"])


def test_two_shifts_become_one(check):
    b = FunctionBuilder()
    y, _ = linear(b, "conv2d")
    y = b.op("add", b.op("add", y, floats(1, 8, 1, 1, seed=1)), floats(8, 1, 1, seed=2))
    assert check.ops(check(PASS, b.function(y))) == ["nn.conv2d", "add"]


def test_whole_chains_are_folded(check):
    b = FunctionBuilder()
    y, _ = linear(b, "conv2d")
    for seed in range(2):
        y = batch_norm(b, b.op("add", b.op("multiply", y, 0.5), floats(8, 1, 1, seed=seed)), 8)
    assert check.ops(check(PASS, b.function(y))) == ["nn.conv2d", "add"]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes_stay(check, dtype):
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (2, 3, 5, 5), dtype), floats(4, 3, 1, 1, dtype=dtype))
    after = check(PASS, b.function(batch_norm(b, y, 4, dtype=dtype)))
    assert check.ops(after) == ["nn.conv2d", "add"]
    assert after.bindings[0].value.args[1].tensor_type.dtype == dtype


# --- what must stay ---------------------------------------------------------------------------------------------------
def test_values_that_others_read_stay(check):
    b = FunctionBuilder()
    y, _ = linear(b, "conv2d")
    function = b.function(batch_norm(b, y, 8), b.op("nn.relu", y))
    assert "nn.batch_norm" in check.ops(check(PASS, function))
    c = FunctionBuilder()
    y, _ = linear(c, "conv2d")
    assert "nn.batch_norm" in check.ops(check(PASS, c.function(batch_norm(c, y, 8), y)))


LEFT_ALONE = {
    "bias alone": lambda b, y: b.op("add", y, floats(8, 1, 1)),
    "other axis": lambda b, y: b.op("multiply", y, floats(7, 1)),
    "whole image": lambda b, y: b.op("multiply", y, floats(1, 8, 7, 6)),
    "more axes": lambda b, y: b.op("multiply", y, floats(1, 1, 8, 1, 1)),
    "division by zero": lambda b, y: b.op("divide", y, np.zeros((8, 1, 1), np.float32)),
    "activation between": lambda b, y: b.op("multiply", b.op("nn.relu", y), floats(8, 1, 1)),
    "overflow": lambda b, y: b.op("multiply", y, 3e38),
    "batch norm over another axis": lambda b, y: batch_norm(b, y, 6, axis=3),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(check, name):
    b = FunctionBuilder()
    y, _ = linear(b, "conv2d")
    function = b.function(LEFT_ALONE[name](b, y))
    assert check.ops(check(PASS, function)) == check.ops(function)


def test_unknown_weights_are_left_alone(check):
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", (N, 6)), b.input("w", (6, 8)))
    function = b.function(b.op("multiply", y, floats(8)))
    assert check(PASS, function) is function


def test_unknown_parameters_are_left_alone(check):
    b = FunctionBuilder()
    y, _ = linear(b, "conv2d")
    variance = b.op("abs", b.input("v", (8,)))
    function = b.function(b.op("nn.batch_norm", y, *vectors(3, 8), variance, epsilon=0.1))
    assert check.ops(check(PASS, function)) == check.ops(function)


# --- simplify_inference ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("shape", "axis"), [((N, 4, 3, 5), 1), ((2, 4, 3), 2), ((4, N), 0), ((N, 4), 1)])
def test_batch_norm_is_multiply_and_add(check, shape, axis):
    function = check.of(lambda b, x: batch_norm(b, x, shape[axis], axis=axis), shape=shape)
    assert check.ops(check(SimplifyInference(), function)) == ["multiply", "add"]


def test_batch_norm_of_unknown_parameters(check):
    b = FunctionBuilder()
    x = b.input("x", (N, 4, 3))
    parameters = [b.input(name, (4,)) for name in ("gamma", "beta", "mean")]
    variance = b.op("exp", b.input("variance", (4,)))
    function = b.function(b.op("nn.batch_norm", x, *parameters, variance, epsilon=0.1))
    after = check(SimplifyInference(), function)
    assert "nn.batch_norm" not in check.ops(after)
    assert check.ops(after)[-2:] == ["multiply", "add"]
