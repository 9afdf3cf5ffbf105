"""Fuse slopes (PReLU) and norms of channels into the primitive before them, or run norms of integers by themselves."""

from __future__ import annotations

import numpy as np
import pytest
from byte_products import needs_byte_products

import kernelyard as ky
from kernelyard.ir import TensorType
from kernelyard.testing import assert_declined

pytestmark = pytest.mark.usefixtures("small_weights_stay")

RNG = np.random.default_rng(7)
SLOPES = np.linspace(-0.5, 1.5, 32).astype(np.float32).reshape(32, 1, 1)
FACTORS, OFFSETS = (RNG.uniform(-1, 2, (32, 1, 1)).astype(np.float32) for _ in range(2))
ALONG_CHANNELS = {"image": (2, 32, 9, 7), "sequence": (1, 32, 40), "volume": (1, 32, 3, 4, 5)}


def quantized(b, y, scale, zero, dtype):
    return b.op("quantize", y, np.float32(scale), np.array(zero, dtype), dtype=dtype)


def decoded(b, x, scale, zero):
    return b.op("dequantize", x, np.float32(scale), np.array(zero, x.type.dtype))


def stored(b, y, scale, zero, dtype):
    return decoded(b, quantized(b, y, scale, zero, dtype), scale, zero)


def norm(b, y):
    return b.op("add", b.op("multiply", y, FACTORS), OFFSETS)


def slopes(b, y):
    return b.op("nn.prelu", y, SLOPES)


AFTER = {
    "slopes": ("nn.prelu", slopes),
    "norm": ("multiply add", norm),
    "norm, relu": ("multiply add nn.relu", lambda b, y: b.op("nn.relu", norm(b, y))),
    "norm, slopes": ("multiply add nn.prelu", lambda b, y: slopes(b, norm(b, y))),
}


# --- floats -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("window", [1, 3])
def test_slopes_after_a_convolution(groups, window, offloading):
    weight = RNG.standard_normal((32, 32 // groups, window, window), np.float32)

    def build(b, x):
        y = b.op("nn.conv2d", x, weight, groups=groups, padding=(window // 2,) * 4, strides=(2, 2))
        return slopes(b, b.op("add", y, OFFSETS))

    offloading.taken("dnnl.conv2d", "nn.conv2d add nn.prelu", build, (2, 32, 12, 11))


def test_slopes_after_a_matmul(offloading):
    weight = RNG.standard_normal((24, 32), np.float32)
    build = lambda b, x: b.op("nn.prelu", b.op("matmul", x, weight), SLOPES.reshape(32))  # noqa: E731
    offloading.taken("dnnl.matmul", "matmul nn.prelu", build, (5, 24))


def test_slopes_after_a_residual(offloading):
    weight = RNG.standard_normal((32, 16, 3, 3), np.float32)

    def build(b, x, residual):
        return slopes(b, b.op("add", b.op("nn.conv2d", x, weight, padding=(1, 1, 1, 1)), residual))

    offloading.taken("dnnl.conv2d", "nn.conv2d add nn.prelu", build, (1, 16, 10, 10), (1, 32, 10, 10))


def test_one_slope_is_a_leaky_relu(offloading):
    weight = RNG.standard_normal((32, 16, 1, 1), np.float32)
    build = lambda b, x: b.op("nn.prelu", b.op("nn.conv2d", x, weight), np.full((1,), 0.2, np.float32))  # noqa: E731
    exe = offloading.taken("dnnl.conv2d", "nn.conv2d nn.prelu", build, (1, 16, 10, 10))
    assert len([label for label, _ in offloading.implementations(exe) if label.startswith("conv")]) == 1


def test_slopes_along_two_axes_are_declined(offloading):
    weight, each = RNG.standard_normal((32, 16, 1, 1), np.float32), RNG.uniform(0, 1, (32, 1, 10)).astype(np.float32)
    build = lambda b, x: b.op("nn.prelu", b.op("nn.conv2d", x, weight), each)  # noqa: E731
    offloading.declined("operand", "dnnl.conv2d", build, (1, 16, 10, 10))


def test_slopes_in_c(offloading):
    weight = RNG.standard_normal((32, 16, 3, 3), np.float32)
    build = lambda b, x: slopes(b, b.op("nn.conv2d", x, weight))  # noqa: E731
    module = offloading.module(build, (1, 16, 8, 8))
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": "c"}})
    assert [region.pattern for region in exe.report.regions] == ["dnnl.conv2d"]
    offloading.right(module, exe)


# --- integers ---------------------------------------------------------------------------------------------------------
def product(b, x, groups, window):
    """Return a convolution of integers with a bias."""
    weight = RNG.integers(-127, 128, (32, 32 // groups, window, window)).astype(np.int8)
    scales = np.random.default_rng(1).uniform(0.001, 0.005, 32).astype(np.float32)
    w = b.op("dequantize", weight, scales, np.zeros(32, np.int8), axis=0)
    y = b.op("nn.conv2d", decoded(b, x, 0.02, 11), w, groups=groups, padding=(window // 2,) * 4)
    return b.op("add", y, OFFSETS)


def runs_as_integers(offloading, exe):
    names = [name for label, name in offloading.implementations(exe) if label.startswith("conv ")]
    return len(names) == 1 and ("vnni" in names[0] or "int8" in names[0])


@needs_byte_products
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("groups", "window"), [(1, 1), (1, 3), (32, 3)])
@pytest.mark.parametrize("after", AFTER)
def test_between_integers(after, groups, window, dtype, offloading):
    ops, build_after = AFTER[after]

    def build(b, x):
        return quantized(b, build_after(b, product(b, x, groups, window)), 0.05, 9, dtype)

    inner = f"dequantize dequantize nn.conv2d add {ops} quantize"
    exe = offloading.taken("dnnl.quantized_conv2d", inner, build, TensorType((1, 32, 9, 8), dtype))
    assert runs_as_integers(offloading, exe)


@needs_byte_products
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("after", AFTER)
def test_what_is_stored_in_between_is_rounded_in_registers(after, window, dtype, offloading):
    """The scale of the result is large beside that in between: what rounding falls on the other side is one quantum."""
    ops, build_after = AFTER[after]

    def build(b, x):
        y = stored(b, product(b, x, 1, window), 0.03, 17, dtype)
        return quantized(b, build_after(b, y), 0.07, 4, dtype)

    inner = f"dequantize dequantize nn.conv2d add quantize dequantize {ops} quantize"
    exe = offloading.taken("dnnl.quantized_conv2d", inner, build, TensorType((1, 32, 9, 8), dtype))
    assert runs_as_integers(offloading, exe)


@needs_byte_products
def test_coarse_integers_in_between_are_seen(offloading):
    """With few steps in between, results have few values: rounding there is not left out."""

    def build(b, x):
        return quantized(b, slopes(b, stored(b, product(b, x, 1, 1), 2.0, 100, "uint8")), 0.07, 128, "uint8")

    inner = "dequantize dequantize nn.conv2d add quantize dequantize nn.prelu quantize"
    exe = offloading.taken("dnnl.quantized_conv2d", inner, build, TensorType((1, 32, 9, 8), "uint8"))
    codes = exe(RNG.integers(0, 256, (1, 32, 9, 8)).astype(np.uint8)).numpy()
    assert max(len(np.unique(codes[:, channel])) for channel in range(32)) < 20


@needs_byte_products
def test_what_another_reads_is_stored(offloading):
    """The integers in between are a result, too: slopes are not part of the convolution."""

    def build(b, x):
        y = quantized(b, product(b, x, 1, 3), 0.03, 17, "uint8")
        after = quantized(b, slopes(b, decoded(b, y, 0.03, 17)), 0.07, 4, "uint8")
        return b.op("concat", y, after, axis=1)

    module = offloading.module(build, TensorType((1, 32, 9, 8), "uint8"))
    exe = ky.compile(module, backends=["dnnl"])
    assert "dequantize dequantize nn.conv2d add quantize" in [" ".join(region.ops) for region in exe.report.regions]
    offloading.right(module, exe)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", ALONG_CHANNELS.values(), ids=ALONG_CHANNELS)
@pytest.mark.parametrize("activation", [None, "nn.relu", "nn.silu"])
def test_a_norm_of_stored_integers(activation, shape, dtype, offloading):
    """One primitive reads 8 bits and writes 8 bits."""
    ones = (1,) * (len(shape) - 2)
    factors, offsets = FACTORS.reshape(32, *ones), OFFSETS.reshape(32, *ones)

    def build(b, x):
        y = b.op("add", b.op("multiply", decoded(b, x, 0.02, 11), factors), offsets)
        return quantized(b, y if activation is None else b.op(activation, y), 0.03, 9, dtype)

    ops = " ".join(["dequantize multiply add", *([activation] if activation else []), "quantize"])
    exe = offloading.taken("dnnl.quantized_binary", ops, build, TensorType(shape, dtype))
    assert [label.split()[0] for label, _ in offloading.implementations(exe)] == ["binary"]


def test_a_norm_of_stored_integers_with_a_symbolic_batch(offloading):
    from kernelyard.dims import symbol

    def build(b, x):
        return quantized(b, norm(b, decoded(b, x, 0.02, 11)), 0.03, 9, "uint8")

    type_ = TensorType((symbol("n"), 32, 6, 5), "uint8")
    module = offloading.module(build, type_)
    exe = ky.compile(module, backends=["dnnl"])
    assert [region.pattern for region in exe.report.regions] == ["dnnl.quantized_binary"]
    for n in (1, 3):
        offloading.right(module, exe, n=n)


def test_numbers_of_integers_without_a_result_of_integers_are_declined(offloading):
    module = offloading.module(lambda b, x: norm(b, decoded(b, x, 0.02, 11)), TensorType((1, 32, 6, 5), "uint8"))
    exe = ky.compile(module, backends=["dnnl"])
    assert_declined(exe, "dnnl", "slow", "dnnl.quantized_binary")
    offloading.right(module, exe)
