"""Templates: what they match, what they capture, and axes that are looked at."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, FunctionBuilder, GlobalVar, TensorType, get_op
from kernelyard.patterns import is_call_tir, match, wildcard
from kernelyard.patterns.templates import (
    convolution,
    decode_matmul,
    layer_norm,
    matmul,
    matmul_dequantize,
    matmul_multiply,
    residual_block,
    rms_norm,
    with_activation,
    with_bias,
    with_residual,
)

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


def test_a_bias_may_be_reshaped_first() -> None:
    b = FunctionBuilder()
    x, bias = b.input("x", (1, 4, 8, 8)), b.input("bias", (4,))
    c = b.op("nn.conv2d", x, np.ones((4, 4, 3, 3), np.float32))
    y = b.op("add", c, b.op("reshape", bias, shape=(1, 4, 1, 1)))
    f = b.function(y)
    through = match(with_bias(convolution(), allow_reshape=True), y, f)
    assert through["bias"] is bias
    assert through.ops == ("nn.conv2d", "reshape", "add")
    outside = match(with_bias(convolution()), y, f)
    assert outside.ops == ("nn.conv2d", "add")
    plain = b.op("add", c, np.ones((1, 4, 1, 1), np.float32))
    assert match(with_bias(convolution(), allow_reshape=True), plain, b.function(plain))


@pytest.mark.parametrize("op", ["add", "multiply", "subtract"])
@pytest.mark.parametrize("first", [True, False])
def test_residual_blocks(op: str, first: bool) -> None:
    b = FunctionBuilder()
    x, r = b.input("x", (2, 8)), b.input("r", (2, 4))
    node = b.op("add", b.op("matmul", x, W), np.ones(4, np.float32))
    combined = b.op(op, *((node, r) if first else (r, node)))
    y = b.op("nn.relu", combined)
    f = b.function(y, combined)
    assert match(residual_block(with_bias(matmul()), op, "nn.relu"), y, f)["residual"] is r
    assert match(residual_block(with_bias(matmul()), op), combined, f)["residual"] is r
    assert match(residual_block(with_bias(matmul()), "divide"), combined, f) is None


def test_norms() -> None:
    b = FunctionBuilder()
    x, w = b.input("x", (2, 8)), np.ones(8, np.float32)
    y = b.op("nn.layer_norm", x, w, w, axes=(1,), epsilon=1e-5)
    z = b.op("nn.rms_norm", x, w, axes=(1,), epsilon=1e-5)
    f = b.function(y, z)
    assert match(layer_norm(), y, f)["data"] is x
    assert match(rms_norm(), z, f)["data"] is x
    assert match(layer_norm(), z, f) is None


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_quantized_numbers(transposed: bool) -> None:
    b = FunctionBuilder()
    x, w = b.input("x", (2, 8), "int32"), b.input("w", (4, 8) if transposed else (8, 4), "int32")
    rhs = b.op("permute_dims", w, axes=(1, 0)) if transposed else w
    product = b.op("matmul", x, rhs)
    y = b.op("dequantize", product, np.float32(0.1), np.int8(3))
    found = match(matmul_dequantize(transposed), y, b.function(y))
    assert found["rhs"] is w
    assert {"lhs", "root", "scale", "zero_point"} <= set(found.captures)
    variable = b.op("dequantize", product, b.input("s", ()), np.int8(3))
    assert match(matmul_dequantize(transposed), variable, b.function(variable)) is None, "the scale must be constant"


def test_products_scaled_by_two_numbers() -> None:
    b = FunctionBuilder()
    x, scales = b.input("x", (2, 8)), [b.input(name, (1,)) for name in ("sa", "sb")]
    product = b.op("matmul", x, W)
    y = b.op("astype", b.op("multiply", product, b.op("multiply", *scales)), dtype="float16")
    found = match(matmul_multiply(), y, b.function(y))
    assert {found["scale_a"], found["scale_b"]} == set(scales)
    rows = b.op("multiply", b.input("rows", (4,)), scales[0])
    wide = b.op("astype", b.op("multiply", product, rows), dtype="float16")
    assert match(matmul_multiply(), wide, b.function(wide)) is None


@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_a_weight_that_is_decoded_first(transposed: bool) -> None:
    b = FunctionBuilder()
    x, stored = b.input("x", (2, 8)), b.input("w", (4, 8) if transposed else (8, 4), "int8")
    weight = b.op("dequantize", stored, np.float32(0.1), np.int8(3))
    weight = b.op("permute_dims", weight, axes=(1, 0)) if transposed else weight
    y = b.op("nn.gelu", b.op("add", b.op("matmul", x, weight), np.ones(4, np.float32)))
    found = match(with_activation(with_bias(decode_matmul(transposed)), "nn.gelu"), y, b.function(y))
    assert found["encoded"] is stored
    assert found["rhs"] is weight

    call = Call(get_op("call_tir"), [GlobalVar("decode"), stored], type_=TensorType((8, 4), "float32"))
    z = b.op("matmul", x, b.bind(call))
    decode = is_call_tir("decode", [wildcard().capture("encoded")])
    assert match(decode_matmul(decode=decode), z, b.function(z))["encoded"] is stored


@pytest.mark.parametrize("activation", ["nn.relu", "nn.gelu", "nn.silu", "tanh", "sigmoid"])
def test_every_activation_can_be_reached_whatever_its_name_contains(activation: str) -> None:
    b = FunctionBuilder()
    x, w = b.input("x", (1, 4, 6)), np.ones((4, 4, 3), np.float32)
    y = b.op("nn.conv1d", x, w, strides=(1,), padding=(0, 0))
    y = b.op(activation, b.op("add", y, np.ones((4, 1), np.float32)))
    pattern = with_activation(with_bias(convolution(1)), "tanh", "nn.silu", "nn.relu", "sigmoid", "nn.gelu")
    found = match(pattern, y, b.function(y))
    assert found is not None
    assert found.call_of("activation").op_name == activation
    assert {"root", "bias"} <= set(found.captures)


SCENARIOS = {
    "make_fused_bias_activation_pattern": test_a_bias_may_be_reshaped_first,
    "make_conv2d_pattern": test_convolutions_by_rank_and_direction,
    "make_matmul_pattern": test_matmul_with_bias_activation_and_residual,
    "make_matmul_pattern(transposed_rhs)": test_only_a_swap_of_the_last_two_axes_is_a_transposed_operand,
    "a permutation that is no transposition (defect of TVM)": (
        test_only_a_swap_of_the_last_two_axes_is_a_transposed_operand
    ),
    "activations that are never reached (defect of TVM)": (
        test_every_activation_can_be_reached_whatever_its_name_contains
    ),
    "make_residual_block_pattern": test_residual_blocks,
    "make_layer_norm_pattern, make_rms_norm_pattern": test_norms,
    "make_matmul_dequantize_pattern": test_products_of_quantized_numbers,
    "make_matmul_multiply_pattern": test_products_scaled_by_two_numbers,
    "decode matmul": test_products_with_a_weight_that_is_decoded_first,
}
