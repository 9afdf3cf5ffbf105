"""Products of integers: matmul and convolutions between dequantize and quantize are one primitive on 8 bits.

The reference computes them in float32; sums of integers are exact, so that results differ by rounding alone.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from byte_products import needs_byte_products

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import TensorType
from kernelyard.testing import assert_declined

pytestmark = pytest.mark.usefixtures("small_weights_stay")

RNG = np.random.default_rng(3)
SCALES = {"x": np.float32(0.02), "w": np.float32(0.006), "r": np.float32(0.03), "y": np.float32(0.05)}


def stored(shape, dtype="uint8"):
    return TensorType(shape, dtype)


def decoded(b, x, scale, zero, axis=None):
    return b.op("dequantize", x, scale, np.array(zero, x.type.dtype), axis=axis)


def weight(b, array, dtype="int8", zero=0, axis=None):
    """Dequantized weights, with a scale for each index along an axis."""
    count = () if axis is None else (array.shape[axis],)
    scales = np.random.default_rng(1).uniform(0.001, 0.01, count).astype(np.float32)
    shift = 128 if dtype == "uint8" else 0
    zeros = np.full(count, zero + shift, dtype)
    return b.op("dequantize", (array.astype(int) + shift).astype(dtype), scales, zeros, axis=axis)


def finish(b, y, bias=None, residual=None, activation=None, result=None, zero=0):
    """Choose what follows a product: its bias, a quantized residual, an activation, and the quantization of the result."""
    if bias is not None:
        y = b.op("add", y, bias)
    if residual is not None:
        y = b.op("add", y, decoded(b, residual, SCALES["r"], 5))
    if activation is not None:
        y = b.op(activation, y)
    return y if result is None else b.op("quantize", y, SCALES["y"], np.array(zero, result), dtype=result)


def is_integer_code(offloading, exe, node, **sizes):
    ran = offloading.implementations(exe, **sizes)
    names = [name for label, name in ran if label.startswith(f"{node} ")]
    return len(names) == 1 and ("vnni" in names[0] or "int8" in names[0] or "amx" in names[0])


W = RNG.integers(-127, 128, (96, 64)).astype(np.int8)
BIAS = RNG.standard_normal(64).astype(np.float32)
FOLLOWERS = {
    "nothing": ("", {}),
    "quantize": (" quantize", {"result": "uint8", "zero": 100}),
    "bias, relu": (" add nn.relu quantize", {"bias": BIAS, "activation": "nn.relu", "result": "int8", "zero": -4}),
    "bias, gelu": (" add nn.gelu quantize", {"bias": BIAS, "activation": "nn.gelu", "result": "uint8", "zero": 11}),
    "bias, gelu, float result": (" add nn.gelu", {"bias": BIAS, "activation": "nn.gelu"}),
}


@needs_byte_products
@pytest.mark.parametrize("followers", FOLLOWERS)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 7), ("int8", 0), ("int8", -3)])
def test_matmul(dtype, zero, followers, offloading):
    ops, after = FOLLOWERS[followers]

    def build(b, x):
        return finish(b, b.op("matmul", decoded(b, x, SCALES["x"], zero), weight(b, W, axis=1)), **after)

    pattern, ops = "dnnl.quantized_matmul", f"dequantize dequantize matmul{ops}"
    exe = offloading.taken(pattern, ops, build, stored((5, 96), dtype))
    assert is_integer_code(offloading, exe, "matmul")


@needs_byte_products
@pytest.mark.parametrize("result", ["uint8", "int8", None])
@pytest.mark.parametrize("activation", ["nn.relu", "tanh"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_matmul_with_a_quantized_residual(dtype, activation, result, offloading):
    def build(b, x, r):
        y = b.op("matmul", decoded(b, x, SCALES["x"], 9), weight(b, W, axis=1))
        return finish(b, y, BIAS, r, activation, result, 2)

    ops = f"dequantize dequantize matmul add dequantize add {activation}" + (" quantize" if result else "")
    offloading.taken("dnnl.quantized_matmul", ops, build, stored((3, 5, 96)), stored((3, 5, 64), dtype))


@needs_byte_products
@pytest.mark.parametrize(("dtype", "zero"), [("int8", 0), ("int8", 3), ("uint8", 0), ("uint8", -8)])
@pytest.mark.parametrize("shape", [(5, 96), (2, 5, 96), (96,)], ids=str)
def test_one_scale_and_zero_point_of_weights(shape, dtype, zero, offloading):
    def build(b, x):
        y = b.op("matmul", decoded(b, x, SCALES["x"], 7), weight(b, W, dtype, zero))
        return finish(b, y, activation="nn.relu", result="uint8", zero=4)

    ops = "dequantize dequantize matmul nn.relu quantize"
    offloading.taken("dnnl.quantized_matmul", ops, build, stored(shape))


def multiplied(offloading, build, *types):
    """The product is of integers, wherever the transposition is."""
    module = offloading.module(build, *types)
    exe = ky.compile(module, backends=["dnnl"])
    patterns = [region.pattern for region in exe.report.regions if region.pattern != "dnnl.reorder"]
    assert patterns == ["dnnl.quantized_matmul"], str(exe.report)
    offloading.right(module, exe)
    assert is_integer_code(offloading, exe, "matmul")


@needs_byte_products
@pytest.mark.parametrize("axis", [0, None])
def test_weights_behind_a_transposition(axis, offloading):
    def build(b, x):
        w = b.op("permute_dims", weight(b, W.T.copy(), axis=axis), axes=(1, 0))
        return finish(b, b.op("matmul", decoded(b, x, SCALES["x"], 7), w), BIAS, result="uint8")

    multiplied(offloading, build, stored((5, 96)))


@needs_byte_products
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_products_of_two_results(batch, transposed, dtype, offloading):
    """As in attention: neither side is a constant."""
    rank = len(batch) + 2
    swapped = (*range(rank - 2), rank - 1, rank - 2)

    def build(b, x, y):
        y = decoded(b, y, SCALES["w"], 100)
        y = b.op("permute_dims", y, axes=swapped) if transposed else y
        y = b.op("matmul", decoded(b, x, SCALES["x"], 107), y)
        return b.op("quantize", y, SCALES["y"], np.uint8(128), dtype="uint8")

    right = (9, 32) if transposed else (32, 9)
    multiplied(offloading, build, stored((*batch, 5, 32)), stored((*batch, *right), dtype))


@needs_byte_products
@pytest.mark.parametrize("zero", ["uint8", "int32"])
@pytest.mark.parametrize("result", [None, "int8"])
def test_scales_that_are_computed(zero, result, offloading):
    def build(b, x, scale, point):
        y = b.op("matmul", b.op("dequantize", x, b.op("exp", scale), point), weight(b, W, axis=1))
        return finish(b, y, BIAS, activation="nn.gelu", result=result)

    types = stored((2, 5, 96)), stored((), "float32"), stored((), zero)
    module = offloading.module(build, *types)
    exe = ky.compile(module, backends=["dnnl"])
    (region,) = exe.report.regions
    assert region.pattern == "dnnl.quantized_matmul"
    x = offloading.feeds(module)[0]
    for scale, point in ((-4.0, 9), (-3.0, 100)):
        feeds = [x, np.float32(scale), np.array(point, zero)]
        offloading.gives(module, exe, feeds)


@needs_byte_products
@pytest.mark.parametrize("result", [None, "uint8"])
@pytest.mark.parametrize("rows", [1, 6, dims.symbol("n")], ids=str)
def test_a_scale_for_each_row(rows, result, offloading):
    """As it is computed for each token; zero points are then 0."""

    def build(b, x, scales):
        y = b.op("dequantize", x, b.op("abs", scales), np.int8(0), axis=0)
        return finish(b, b.op("matmul", y, weight(b, W, axis=1)), BIAS, activation="nn.gelu", result=result)

    module = offloading.module(build, stored((rows, 96), "int8"), stored((rows,), "float32"))
    exe = ky.compile(module, backends=["dnnl"])
    assert "dnnl.quantized_matmul" in [region.pattern for region in exe.report.regions], str(exe.report)
    sizes = [3, 1, 8] if not isinstance(rows, int) else [rows]
    for size in sizes:
        x, scales = offloading.feeds(module, n=size)
        offloading.gives(module, exe, [x, scales * np.float32(0.02)])


@needs_byte_products
def test_symbolic_rows(offloading):
    n = dims.symbol("n")

    def build(b, x):
        y = b.op("matmul", decoded(b, x, SCALES["x"], 7), weight(b, W, axis=1))
        return finish(b, y, BIAS, activation="nn.relu", result="uint8")

    module = offloading.module(build, stored((n, 96)))
    exe = ky.compile(module, backends=["dnnl"])
    assert [region.pattern for region in exe.report.regions] == ["dnnl.quantized_matmul"]
    for size in (1, 7, 64):
        offloading.right(module, exe, n=size)
        assert is_integer_code(offloading, exe, "matmul", n=size)


# --- convolutions -----------------------------------------------------------------------------------------------------
# label -> (channels, filters, image, kernel, attributes)
WINDOWS = {
    "3 x 3": (16, 32, (9, 9), 3, {"padding": (1,) * 4}),
    "1 x 1": (24, 40, (6, 7), 1, {}),
    "1 x 1, strided": (24, 40, (7, 7), 1, {"strides": (2, 2)}),
    "depthwise": (24, 24, (9, 8), 3, {"padding": (1,) * 4, "groups": 24}),
    "depthwise, odd": (5, 5, (9, 8), 5, {"padding": (2,) * 4, "groups": 5, "strides": (2, 2)}),
    "groups": (16, 32, (9, 9), 3, {"padding": (1,) * 4, "groups": 4}),
    "wide groups": (128, 128, (5, 5), 3, {"padding": (1,) * 4, "groups": 4}),
    "dilated": (16, 32, (9, 9), 3, {"padding": (2,) * 4, "dilation": (2, 2)}),
    "first layer": (3, 64, (23, 23), 7, {"padding": (3,) * 4, "strides": (2, 2)}),
    "uneven padding": (5, 7, (9, 9), 3, {"padding": (0, 1, 2, 1)}),
    "one channel": (1, 5, (9, 9), 3, {}),
    "one dim": (16, 32, (9,), 3, {"padding": (1, 1)}),
    "three dims": (8, 16, (5, 6, 7), 3, {"padding": (1,) * 6}),
}


def convolved(b, x, label, zero, dtype="int8", per_channel=True):
    channels, filters, image, kernel, attrs = WINDOWS[label]
    rng = np.random.default_rng(len(label))
    array = rng.integers(-127, 128, (filters, channels // attrs.get("groups", 1), *(kernel,) * len(image)))
    w = weight(b, array, dtype, axis=0 if per_channel else None)
    y = b.op(f"nn.conv{len(image)}d", decoded(b, x, SCALES["x"], zero), w, **attrs)
    return y, rng.standard_normal((1, filters, *(1,) * len(image))).astype(np.float32)


@needs_byte_products
@pytest.mark.parametrize("label", WINDOWS)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 7), ("int8", -3)])
@pytest.mark.parametrize(("activation", "point"), [("nn.relu", 2), ("nn.hard_swish", 3)])
def test_convolution(label, dtype, zero, activation, point, offloading):
    """Padding is zeros in float32, thus the zero point in integers."""
    channels, _, image, *_ = WINDOWS[label]

    def build(b, x):
        y, bias = convolved(b, x, label, zero)
        return finish(b, y, bias, activation=activation, result="uint8", zero=point)

    op = f"nn.conv{len(image)}d"
    ops = f"dequantize dequantize {op} add {activation} quantize"
    pattern = f"dnnl.quantized_conv{len(image)}d"
    exe = offloading.taken(pattern, ops, build, stored((2, channels, *image), dtype))
    assert is_integer_code(offloading, exe, "conv")


def asymmetric(b, x, label, dtype="uint8", axis=None):
    """A convolution by weights that are more than int8 holds, less their zero points."""
    channels, filters, image, kernel, attrs = WINDOWS[label]
    shape = (filters, channels // attrs.get("groups", 1), *(kernel,) * len(image))
    array = np.random.default_rng(len(label)).permutation(np.linspace(-128, 127, int(np.prod(shape)))).reshape(shape)
    y = b.op(f"nn.conv{len(image)}d", decoded(b, x, SCALES["x"], 7), weight(b, array, dtype, -9, axis), **attrs)
    return finish(b, y, np.ones((filters, *(1,) * len(image)), np.float32), None, "nn.relu", "uint8", 3)


DEPTHWISE = ("depthwise", "depthwise, odd")


@needs_byte_products
@pytest.mark.parametrize("label", [label for label in WINDOWS if label not in DEPTHWISE])
@pytest.mark.parametrize(("dtype", "axis"), [("uint8", None), ("int8", None), ("uint8", 0)])
def test_zero_points_of_filters_are_a_second_convolution(label, dtype, axis, offloading):
    """Of the sums over all channels; with groups, of the channels themselves by the zero points."""
    channels, _, image, *_, attrs = WINDOWS[label]
    op = f"nn.conv{len(image)}d"
    pairs = f"dequantize dequantize {op}"
    corrections = [pairs] if "groups" in attrs else [pairs, op]
    module = offloading.module(lambda b, x: asymmetric(b, x, label, dtype, axis), stored((2, channels, *image)))
    names = corrected(offloading, module, [*corrections, f"{pairs} add subtract nn.relu quantize"])
    integers = [name for name in names if "vnni" in name or "int8" in name or "amx" in name]
    assert len(integers) == 2, names


@pytest.mark.parametrize("label", DEPTHWISE)
@pytest.mark.parametrize(("dtype", "axis"), [("uint8", None), ("int8", None), ("uint8", 0)])
def test_depthwise_filters_far_from_their_zero_points_are_floats(label, dtype, axis, offloading):
    """One convolution, without a correction."""
    channels, _, image, *_ = WINDOWS[label]
    module = offloading.module(lambda b, x: asymmetric(b, x, label, dtype, axis), stored((2, channels, *image)))
    exe = ky.compile(module, backends=["dnnl"])
    convolutions = [region.ops for region in exe.report.regions if "nn.conv2d" in region.ops]
    assert [ops.count("nn.conv2d") for ops in convolutions] == [1], str(exe.report)
    names = [name for node, name in offloading.implementations(exe) if node.startswith("conv")]
    assert len(names) == 1, names
    assert not any(word in names[0] for word in ("vnni", "int8", "amx"))
    offloading.right(module, exe)


@needs_byte_products
def test_zero_points_of_columns_are_sums_of_rows_times_them(offloading):
    zeros = np.arange(64, dtype=np.uint8) + 90
    codes, scales = RNG.integers(0, 256, (96, 64)).astype(np.uint8), RNG.uniform(0.001, 0.01, 64).astype(np.float32)

    def build(b, x):
        y = b.op("matmul", decoded(b, x, SCALES["x"], 7), b.op("dequantize", codes, scales, zeros, axis=1))
        return finish(b, y, np.ones(64, np.float32), result="uint8", zero=3)

    pairs = "dequantize dequantize matmul"
    module = offloading.module(build, stored((16, 96)))
    names = corrected(offloading, module, [pairs, "matmul", f"{pairs} add subtract quantize"], "matmul")
    assert len([name for name in names if "vnni" in name or "amx" in name]) == 2, names


def corrected(offloading, module, groups, product="conv"):
    """Return the implementations of products of a compile that has these groups, and gives the right results."""
    exe = ky.compile(module, backends=["dnnl"])
    found = sorted(" ".join(region.ops) for region in exe.report.regions)
    assert found == sorted(groups), str(exe.report)
    offloading.right(module, exe)
    return [name for node, name in offloading.implementations(exe) if node.startswith(product)]


@needs_byte_products
@pytest.mark.parametrize(("zero", "axis"), [(-9, None), (40, 1)])
def test_zero_points_of_transposed_filters_are_a_second_convolution(zero, axis, offloading):
    w = RNG.permutation(np.linspace(-128, 127, 16 * 24 * 9)).reshape(16, 24, 3, 3)
    attrs = {"strides": (2, 2), "padding": (1, 0, 1, 1), "output_padding": (1, 0)}

    def build(b, x):
        kernel = weight(b, w, "uint8", zero, axis)
        y = b.op("nn.conv2d_transpose", decoded(b, x, SCALES["x"], 7), kernel, **attrs)
        return finish(b, y, np.ones((24, 1, 1), np.float32), result="uint8", zero=3)

    module, op = offloading.module(build, stored((2, 16, 7, 5))), "nn.conv2d_transpose"
    pairs = "dequantize dequantize"
    corrected(offloading, module, [f"{pairs} nn.conv2d", op, f"{pairs} {op} add subtract quantize"])


@needs_byte_products
def test_filters_that_fit_without_their_zero_points_are_one_convolution(offloading):
    def build(b, x):
        w = weight(b, RNG.integers(-100, 100, (8, 4, 3, 3)), zero=1)
        return finish(b, b.op("nn.conv2d", decoded(b, x, SCALES["x"], 7), w), result="uint8", zero=9)

    offloading.taken("dnnl.quantized_conv2d", "dequantize dequantize nn.conv2d quantize", build, stored((1, 4, 6, 6)))


@needs_byte_products
@pytest.mark.parametrize(("zero", "corrections"), [(0, 0), (-128, 1)], ids=["int8", "uint8"])
def test_convolutions_of_integers_that_are_scaled_afterwards(zero, corrections, offloading):
    """As dynamic quantization writes them: the scale, the zero point and the bias are known with the data."""
    w = RNG.permutation(np.linspace(-128, 127, 24 * 16 * 9)).round().reshape(24, 16, 3, 3) - zero

    def build(b, x, measured, point, bias):
        left = b.op("subtract", *(b.op("astype", each, dtype="float64") for each in (x, point)))
        total = b.op("nn.conv2d", left, w, padding=(1, 1, 0, 2))
        total = b.op("add", b.op("astype", total, dtype="int32"), bias)
        y = b.op("multiply", b.op("astype", total, dtype="float32"), b.op("multiply", measured, np.float32(0.01)))
        return b.op("nn.silu", y)

    types = stored((1, 16, 9, 8)), stored((), "float32"), stored((), "uint8"), stored((24, 1, 1), "int32")
    module = offloading.module(build, *types)
    exe = ky.compile(module, backends=["dnnl"])
    regions = [region for region in exe.report.regions if region.backend == "dnnl"]
    convolutions = [region for region in regions if "nn.conv2d" in region.ops]
    assert len(convolutions) == 1 + 2 * corrections, str(exe.report)
    assert [region.pattern for region in convolutions].count("dnnl.quantized_conv2d") == 1 + corrections
    assert ["nn.silu" in region.ops for region in convolutions].count(True) == 1
    x, measured, *_ = offloading.feeds(module)
    bias = RNG.integers(-900, 900, (24, 1, 1)).astype(np.int32)
    offloading.gives(module, exe, [x, np.abs(measured), np.uint8(9), bias])


PATTERNS = ("dnnl.quantized_conv1d", "dnnl.quantized_conv2d", "dnnl.quantized_conv3d")


@needs_byte_products
@pytest.mark.parametrize("label", ["3 x 3", "1 x 1, strided", "depthwise", "groups"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("result", ["uint8", "int8", None])
def test_convolution_with_a_quantized_residual(label, dtype, result, offloading):
    channels, *_ = WINDOWS[label]

    def build(b, x, r):
        y, bias = convolved(b, x, label, 7, "uint8", per_channel=False)
        return finish(b, y, bias, r, "nn.relu", result, 1)

    shape = offloading.module(lambda b, x: convolved(b, x, label, 7)[0], stored((1, channels, 9, 8)))
    ops = "dequantize dequantize nn.conv2d add dequantize add nn.relu" + (" quantize" if result else "")
    residual = stored(shape["main"].result_type.shape, dtype)
    exe = offloading.taken("dnnl.quantized_conv2d", ops, build, stored((1, channels, 9, 8)), residual)
    assert is_integer_code(offloading, exe, "conv")


@needs_byte_products
@pytest.mark.parametrize("result", ["uint8", "int8", None])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 7), ("int8", -3)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("window", [2, 3])
def test_transposed_convolution(window, groups, dtype, zero, result, offloading):
    """With a scale for each channel of the result, which groups would share."""
    w = RNG.integers(-127, 128, (16, 24, window, window)).astype(np.int8)

    def build(b, x):
        kernel = weight(b, w, axis=1 if groups == 1 else None)
        y = b.op("nn.conv2d_transpose", decoded(b, x, SCALES["x"], zero), kernel, strides=(2, 2), groups=groups)
        bias = RNG.standard_normal((24 * groups, 1, 1)).astype(np.float32)
        return finish(b, y, bias, activation="nn.relu", result=result, zero=5)

    ops = "dequantize dequantize nn.conv2d_transpose add nn.relu" + (" quantize" if result else "")
    offloading.taken("dnnl.quantized_conv2d_transpose", ops, build, stored((1, 16, 7, 5), dtype))


@needs_byte_products
@pytest.mark.parametrize(
    ("pattern", "image"), [("dnnl.quantized_conv1d_transpose", (9,)), ("dnnl.quantized_conv3d_transpose", (4, 3, 5))]
)
def test_transposed_convolution_of_other_ranks(pattern, image, offloading):
    w = RNG.integers(-127, 128, (16, 24, *(2,) * len(image))).astype(np.int8)
    op = f"nn.conv{len(image)}d_transpose"

    def build(b, x):
        y = b.op(op, decoded(b, x, SCALES["x"], 7), weight(b, w, axis=1), strides=(2,) * len(image))
        return finish(b, y, result="uint8", zero=5)

    offloading.taken(pattern, f"dequantize dequantize {op} quantize", build, stored((1, 16, *image)))


def test_groups_of_a_transposed_convolution_share_no_scales(offloading):
    w = RNG.integers(-127, 128, (16, 24, 2, 2)).astype(np.int8)

    def build(b, x):
        return b.op("nn.conv2d_transpose", decoded(b, x, SCALES["x"], 7), weight(b, w, axis=1), groups=2)

    offloading.declined("attribute", "dnnl.quantized_conv2d_transpose", build, stored((1, 16, 7, 5)))


@needs_byte_products
def test_residuals_in_floats(offloading):
    def build(b, x, r):
        y, _ = convolved(b, x, "1 x 1", 7)
        return b.op("quantize", b.op("add", y, r), SCALES["y"], np.array(3, np.uint8), dtype="uint8")

    ops = "dequantize dequantize nn.conv2d add quantize"
    offloading.taken("dnnl.quantized_conv2d", ops, build, stored((1, 24, 6, 7)), (1, 40, 6, 7))


# --- what is declined -------------------------------------------------------------------------------------------------
def product(b, x, w):
    return b.op("matmul", x, w)


REFUSALS = {
    "scales along the rows of the weights": (
        "attribute", lambda b, x: product(b, decoded(b, x, SCALES["x"], 7), weight(b, W, axis=0)),
    ),
    "scales along a vector": (
        "attribute", lambda b, x: product(b, decoded(b, x, SCALES["x"], 7), weight(b, W[:, 0], axis=0)),
    ),
    "scales along the rows of the data": (
        "attribute",
        lambda b, x: product(
            b, b.op("dequantize", x, np.full(5, 0.1, np.float32), np.ones(5, np.uint8), axis=0), weight(b, W, axis=1)
        ),
    ),
    "16 bits": (
        "dtype", lambda b, x: product(b, decoded(b, x, SCALES["x"], 7), b.op("dequantize", W.astype(np.int16), SCALES["w"], np.int16(0))),
    ),
    "several zero points of the weights": (
        "attribute",
        lambda b, x: product(
            b, decoded(b, x, SCALES["x"], 7),
            b.op("dequantize", W[None], np.full(64, 0.1, np.float32), np.arange(64).astype(np.int8), axis=2),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_oneDNN_lacks(case, offloading):
    code, build = REFUSALS[case]
    offloading.declined(code, "dnnl.quantized_matmul", build, stored((5, 96)))


WITHOUT_VNNI = """
import numpy as np
import kernelyard as ky
from kernelyard.testing import assert_declined

exe = ky.load(__import__("sys").argv[1])
x = np.full((5, 96), 255, np.uint8)
print(exe(x).numpy().tolist())
(runtime,) = [module for module in exe.modules if module.kind == "dnnl"]
print([name for _, name in runtime.plan(runtime.symbols()[0], {}, 1).implementations])
"""


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "SSE41"])
def test_nothing_saturates_without_vnni(isa, offloading, tmp_path):
    """Pairs of the largest products are above 16 bits: what was compiled elsewhere computes in floats."""

    def build(b, x):
        w = b.op("dequantize", np.full((96, 8), 127, np.int8), SCALES["w"], np.int8(0))
        return b.op("matmul", decoded(b, x, SCALES["x"], 0), w)

    module = offloading.module(build, stored((5, 96)))
    exe = ky.compile(module, backends=["dnnl"])
    exe.save(tmp_path / "m.kyar")
    command = [sys.executable, "-c", WITHOUT_VNNI, str(tmp_path / "m.kyar")]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    numbers, implementations = result.stdout.splitlines()
    np.testing.assert_allclose(eval(numbers), np.full((5, 8), 96 * 255 * 127 * 0.02 * 0.006), rtol=1e-5)
    assert "vnni" not in implementations
    assert "int8" not in implementations


def test_without_vnni_it_is_declined(offloading, monkeypatch):
    from kernelyard_dnnl import integer_checks

    monkeypatch.setattr(integer_checks, "can_multiply_integers", lambda: False)

    def build(b, x):
        return b.op("matmul", decoded(b, x, SCALES["x"], 0), weight(b, W, axis=1))

    module = offloading.module(build, stored((5, 96)))
    assert_declined(ky.compile(module, backends=["dnnl"]), "dnnl", "numbers", "dnnl.quantized_matmul")


def test_weights_of_no_channels_are_declined(offloading):
    def build(b, x):
        return finish(b, b.op("matmul", decoded(b, x, SCALES["x"], 3), weight(b, W[:, :0], axis=1)), result="uint8")

    exe = ky.compile(offloading.module(build, stored((5, 96))), backends=["dnnl"])
    assert_declined(exe, "dnnl", "empty", "dnnl.quantized_matmul")
    assert exe(np.zeros((5, 96), np.uint8)).numpy().shape == (5, 0)
