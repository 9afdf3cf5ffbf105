"""Concatenations of convolutions: what follows them is computed for each piece."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.ir import Constant, FunctionBuilder
from kernelyard.ops.samples import floats
from kernelyard.transform.algebraic.sink_concat import SinkConcat
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

PASS = Sequential([SinkConcat(), DeadCodeElimination()])
SIZES = (3, 5, 4)


def convolutions(b, x, bias=False):
    made = [b.op("nn.conv2d", x, floats(size, 6, 1, 1, seed=size)) for size in SIZES]
    return [b.op("add", each, floats(1, size, 1, 1)) for each, size in zip(made, SIZES, strict=True)] if bias else made


def norm(b, x):
    channels = sum(SIZES)
    variance = Constant(np.linspace(0.5, 2, channels, dtype=np.float32))
    return b.op("nn.batch_norm", x, *(floats(channels, seed=seed) for seed in range(3)), variance)


@pytest.mark.parametrize("bias", [False, True])
def test_norm_and_activation(check, bias):
    def build(b, x):
        return b.op("nn.silu", norm(b, b.op("concat", *convolutions(b, x, bias), axis=1)))

    after = check(PASS, check.of(build, (2, 6, 4, 3)))
    ops = check.ops(after)
    assert ops[-1] == "concat"
    assert ops.count("concat") == 1
    assert ops.count("nn.silu") == ops.count("multiply") == len(SIZES)


@pytest.mark.parametrize("vector", [(12, 1, 1), (1, 1, 1, 1), ()], ids=str)
@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide"])
def test_constants_for_channels(check, op, vector):
    constant = np.full(vector, 1.5, np.float32) + np.arange(np.prod(vector), dtype=np.float32).reshape(vector)

    def build(b, x):
        return b.op("nn.relu", b.op(op, b.op("concat", *convolutions(b, x), axis=1), constant))

    ops = check.ops(check(PASS, check.of(build, (2, 6, 4, 3))))
    assert ops[-1] == "concat"
    assert ops.count("nn.relu") == len(SIZES)


def test_rows_of_matrix_products(check):
    def build(b, x):
        return b.op("nn.gelu", b.op("concat", *(b.op("matmul", x, floats(6, size)) for size in SIZES), axis=1))

    assert check.ops(check(PASS, check.of(build, (4, 6)))) == ["matmul"] * 3 + ["nn.gelu"] * 3 + ["concat"]


def test_a_piece_or_result_that_others_read_stays(check):
    def two_readers(b, x):
        made = b.op("concat", *convolutions(b, x), axis=1)
        return b.op("add", b.op("nn.relu", made), made)

    def shared_piece(b, x):
        pieces = convolutions(b, x)
        result = b.op("nn.relu", b.op("concat", *pieces, axis=1))
        return b.op("add", result, b.op("sum", pieces[0], axes=(1,), keepdims=True))

    for build in (two_readers, shared_piece):
        assert check.ops(check(PASS, check.of(build, (2, 6, 4, 3)))).count("nn.relu") == 1


@pytest.mark.parametrize("axis", [0, 2])
def test_other_axes_stay(check, axis):
    def build(b, x):
        pieces = [b.op("nn.conv2d", x, floats(4, 6, 1, 1, seed=seed)) for seed in range(2)]
        return b.op("nn.relu", b.op("concat", *pieces, axis=axis))

    assert check.ops(check(PASS, check.of(build, (2, 6, 4, 3))))[-1] == "nn.relu"


def test_pieces_that_are_not_convolutions_stay(check):
    def build(b, x):
        return b.op("nn.relu", b.op("concat", b.op("nn.conv2d", x, floats(4, 6, 1, 1)), x, axis=1))

    assert check.ops(check(PASS, check.of(build, (2, 6, 4, 3)))) == ["nn.conv2d", "concat", "nn.relu"]


def test_what_combines_two_tensors_stays(check):
    b = FunctionBuilder()
    x, y = b.input("x", (2, 6, 4, 3)), b.input("y", (2, 12, 4, 3))
    function = b.function(b.op("add", b.op("concat", *convolutions(b, x), axis=1), y))
    assert check.ops(check(PASS, function))[-1] == "add"
