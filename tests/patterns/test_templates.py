"""Templates: what they match, what they capture, and axes that are looked at."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import FunctionBuilder
from kernelyard.patterns import match
from kernelyard.patterns.templates import convolution, matmul, with_activation, with_bias, with_residual

W = np.ones((8, 4), np.float32)


def test_matmul_with_bias_activation_and_residual() -> None:
    b = FunctionBuilder()
    x, r = b.input("x", (2, 8)), b.input("r", (2, 4))
    y = b.op("add", r, b.op("nn.relu", b.op("add", b.op("matmul", x, W), np.ones(4, np.float32))))
    pattern = with_residual(with_activation(with_bias(matmul()), "nn.gelu", "nn.relu"))
    found = match(pattern, y, b.function(y))
    assert found is not None
    assert set(found.captures) == {"lhs", "rhs", "root", "bias", "activation", "residual"}
    assert found["lhs"] is x
    assert found["residual"] is r
    assert found.call_of("activation").op_name == "nn.relu"


@pytest.mark.parametrize(("axes", "matches"), [((0, 2, 1), True), ((2, 1, 0), False), ((0, 1, 2), False)])
def test_only_a_swap_of_the_last_two_axes_is_a_transposed_operand(axes: tuple[int, ...], matches: bool) -> None:
    b = FunctionBuilder()
    shape = [0, 0, 0]
    for axis, size in zip(axes, (3, 8, 4), strict=True):
        shape[axis] = size
    weight = b.input("w", shape)
    y = b.op("matmul", b.input("x", (3, 2, 8)), b.op("permute_dims", weight, axes=axes))
    found = match(matmul(transposed_rhs=True), y, b.function(y))
    assert (found is not None) == matches
    if found is not None:
        assert found["rhs"] is weight


def test_convolutions_by_rank_and_direction() -> None:
    b = FunctionBuilder()
    x, w = b.input("x", (1, 4, 6)), np.ones((4, 4, 3), np.float32)
    y = b.op("nn.conv1d", x, w, strides=(1,), padding=(0, 0))
    z = b.op("nn.conv1d_transpose", x, w, strides=(1,), padding=(0, 0))
    f = b.function(y, z)
    assert match(convolution(1), y, f)["data"] is x
    assert match(convolution(1, transposed=True), z, f)
    assert match(convolution(2), y, f) is None
