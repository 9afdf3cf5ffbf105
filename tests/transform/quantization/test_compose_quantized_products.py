"""Products of integers that are scaled afterwards, as MatMulInteger and ConvInteger write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelyard.ir import Expr, Function, FunctionBuilder, TensorType
from kernelyard.ops.samples import floats, integers
from kernelyard.transform import ComposeQuantizedProducts, DeadCodeElimination, Sequential

PASS = Sequential([ComposeQuantizedProducts(), DeadCodeElimination()])
WEIGHT = integers(8, 5, dtype="int8", low=-128, high=127)
ONE = np.float32(0.02)


def matmul(
    weight: np.ndarray = WEIGHT,
    scale: Any = ONE,
    dtype: str = "int32",
    stored: str = "uint8",
) -> Function:
    """`astype(matmul(x - zero, weight)) * (measured * scale)`, where the zero point and a scale are computed."""
    b = FunctionBuilder()
    x, measured = b.parameter(TensorType((4, 8), stored), "x"), b.input("measured", ())
    zero = b.op("quantize", measured, np.float32(0.01), np.asarray(0, stored), dtype=stored)
    left = b.op("subtract", b.op("astype", x, dtype=dtype), b.op("astype", zero, dtype=dtype))
    total = b.op("astype", b.op("matmul", left, weight.astype(dtype)), dtype="float32")
    return b.function(b.op("multiply", total, b.op("multiply", measured, scale)))


def inputs(stored: str = "uint8") -> list[np.ndarray]:
    return [integers(4, 8, dtype=stored, low=0, high=120), np.float32(1.25)]


@pytest.mark.parametrize("scale", [ONE, floats(5, low=0.01, high=0.1), floats(1, 5, low=0.01, high=0.1)])
@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_a_product_of_integers_becomes_one_of_what_they_stand_for(check, scale, dtype):
    after = check(PASS, matmul(scale=scale, dtype=dtype), inputs())
    assert check.ops(after) == ["quantize", "dequantize", "dequantize", "matmul"]
    codes, weight_scale, zero = after.bindings[2].value.args
    np.testing.assert_array_equal(codes.data, WEIGHT)
    np.testing.assert_array_equal(weight_scale.data, np.squeeze(scale))
    assert zero.data == 0


@pytest.mark.parametrize(("zeros", "kept"), [([3] * 5, ()), ([3, 3, 3, 3, 4], (5,)), ([[3]] * 7 + [[4]], None)])
def test_zero_points_that_are_converted_are_one_if_they_are_equal_and_else_along_channels(check, zeros, kept):
    b, zeros = FunctionBuilder(), np.array(zeros, np.int8)
    x, measured = b.parameter(TensorType((4, 8), "uint8"), "x"), b.input("measured", ())
    codes, shift = (b.op("astype", each, dtype="int32") for each in (np.clip(WEIGHT, -100, 100), zeros))
    total = b.op("matmul", b.op("astype", x, dtype="int32"), b.op("subtract", codes, shift))
    function = b.function(b.op("multiply", b.op("astype", total, dtype="float32"), b.op("multiply", measured, ONE)))
    after = check(PASS, function, inputs())
    decoded = [binding.value for binding in after.bindings if binding.value.op_name == "dequantize"]
    assert [each.args[2].tensor_type.shape for each in decoded[1:]] == ([] if kept is None else [kept])


def test_weights_from_another_zero_point_keep_it(check):
    after = check(PASS, matmul(WEIGHT.astype(np.int32) + 100), inputs())
    assert check.ops(after)[-1] == "matmul"
    codes, _, zero = after.bindings[2].value.args
    np.testing.assert_array_equal(codes.data.astype(int) - zero.data, WEIGHT.astype(int) + 100)


def test_scales_that_are_all_computed_are_those_of_the_data(check):
    b = FunctionBuilder()
    x, scales = b.parameter(TensorType((4, 8), "uint8"), "x"), [b.input(name, ()) for name in ("first", "second")]
    total = b.op("astype", b.op("matmul", b.op("astype", x, dtype="int32"), WEIGHT.astype(np.int32)), dtype="float32")
    after = check(PASS, b.function(b.op("multiply", total, b.op("multiply", *scales))), [inputs()[0], ONE, ONE])
    assert check.ops(after) == ["multiply", "dequantize", "dequantize", "matmul"]


@pytest.mark.parametrize(
    "changed",
    [
        {"weight": WEIGHT.astype(np.int32) * 2},  # more than 8 bits
        {"weight": WEIGHT + 0.5, "dtype": "float64"},
        {"stored": "int16"},
        {"scale": floats(4, 1, low=0.01, high=0.1)},  # by row
        {"scale": floats(4, 5, low=0.01, high=0.1)},
    ],
    ids=["wide weights", "fractions", "wide data", "scales of rows", "scales of elements"],
)
def test_others_stay(check, changed):
    after = check(PASS, matmul(**changed), inputs(changed.get("stored", "uint8")))
    assert check.ops(after)[-1] == "multiply"


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 3, 1, 1)])
def test_convolutions_have_scales_of_channels(check, shape):
    b = FunctionBuilder()
    x = b.parameter(TensorType((1, 2, 6, 6), "uint8"), "x")
    weight = integers(3, 2, 3, 3, dtype="int8", low=-128, high=127)
    left: Expr = b.op("subtract", b.op("astype", x, dtype="float64"), np.float64(7))
    total = b.op("nn.conv2d", left, weight.astype(np.float64), padding=(1, 1, 1, 1))
    total = b.op("astype", b.op("astype", total, dtype="int32"), dtype="float32")
    function = b.function(b.op("multiply", total, floats(*shape, low=0.01, high=0.1)))
    after = check(PASS, function, [integers(1, 2, 6, 6, dtype="uint8", low=0, high=255)])
    assert check.ops(after) == ["dequantize", "dequantize", "nn.conv2d"]
    assert after.bindings[0].value.args[2].data == 7
    assert after.bindings[1].value.attrs["axis"] == 0


def convolution(weight: Any, bias: Any = None, scale: Any = ONE) -> Function:
    """`astype(conv(x - 7, weight) + bias) * (measured * scale)`, as models write what was quantized with its bias."""
    b = FunctionBuilder()
    x, measured = b.parameter(TensorType((1, 2, 6, 6), "uint8"), "x"), b.input("measured", ())
    left = b.op("subtract", b.op("astype", x, dtype="float64"), np.float64(7))
    total = b.op("nn.conv2d", left, np.asarray(weight, np.float64), padding=(1, 0, 2, 1))
    total, scales = b.op("astype", total, dtype="int32"), b.op("multiply", measured, scale)
    if callable(bias):
        bias = bias(b, scales)
    total = total if bias is None else b.op("add", total, bias)
    return b.function(b.op("multiply", b.op("astype", total, dtype="float32"), scales))


def image() -> list[np.ndarray]:
    return [integers(1, 2, 6, 6, dtype="uint8", low=0, high=255), np.float32(0.5)]


FILTERS = integers(3, 2, 3, 3, dtype="int8", low=-128, high=127)


def divided(b: FunctionBuilder, scale: Expr) -> Expr:
    """A bias in units that are known with the data."""
    numbers = b.op("floor", b.op("divide", floats(3, low=-9.0, high=9.0), scale))
    return b.op("reshape", b.op("astype", numbers, dtype="int32"), shape=(1, 3, 1, 1))


@pytest.mark.parametrize("bias", [integers(3, 1, 1, dtype="int32", low=-5000, high=5000), divided])
def test_a_bias_of_integers_is_added_in_real_numbers(check, bias):
    after = check(PASS, convolution(FILTERS, bias), image())
    assert check.ops(after)[-1] == "add"
    product = after.bindings[-1].value.args[0]
    made = {binding.var: binding.value for binding in after.bindings}
    assert [made[arg].op_name for arg in made[product].args] == ["dequantize", "dequantize"]


def test_integers_added_to_each_element_stay(check):
    bias = integers(1, 3, 7, 5, dtype="int32", low=-5000, high=5000)
    assert check.ops(check(PASS, convolution(FILTERS, bias), image()))[-1] == "multiply"


def test_weights_of_channels_have_zero_points_of_their_own(check):
    wide = FILTERS.astype(int) + np.array([120, 0, -120]).reshape(3, 1, 1, 1)
    after = check(PASS, convolution(wide), image())
    codes, scale, zeros = next(b.value for b in after.bindings[::-1] if b.value.op_name == "dequantize").args
    assert (codes.data.dtype, scale.data.shape, zeros.data.shape) == (np.uint8, (), (3,))
    np.testing.assert_array_equal(codes.data - zeros.data.astype(int).reshape(3, 1, 1, 1), wide)


def test_adding_the_negative_of_a_zero_point_subtracts_it(check):
    b = FunctionBuilder()
    x, codes = b.parameter(TensorType((4, 8), "uint8"), "x"), (WEIGHT.astype(int) + 128).astype(np.uint8)
    right = b.op("add", b.op("astype", codes, dtype="int32"), np.int32(-119))
    total = b.op("matmul", b.op("add", b.op("astype", x, dtype="int32"), np.int32(-7)), right)
    function = b.function(b.op("multiply", b.op("astype", total, dtype="float32"), ONE))
    after = check(PASS, function, inputs()[:1])
    assert check.ops(after) == ["dequantize", "dequantize", "matmul"]
    assert [int(after.bindings[n].value.args[2].data) for n in (0, 1)] == [7, 119]
