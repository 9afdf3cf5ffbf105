"""Networks whose data are quantized to 16 bits: what these hold is rounded in float32, inside the primitives."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.testing import assert_declined

RNG = np.random.default_rng(11)


def stored(b, y, scale, zero, dtype):
    scale, zero = np.float32(scale), np.array(zero, dtype)
    return b.op("dequantize", b.op("quantize", y, scale, zero, dtype=dtype), scale, zero)


STORES = [("int16", 0), ("int16", -321), ("uint16", 30001)]


@pytest.mark.parametrize(("dtype", "zero"), STORES)
@pytest.mark.parametrize("groups", [1, 32])
def test_a_convolution_rounds_its_result(groups, dtype, zero, offloading):
    weight = RNG.standard_normal((32, 32 // groups, 3, 3), np.float32)
    bias = RNG.standard_normal((32, 1, 1), np.float32)
    scale = 0.2  # hard_swish is flat around its least value, -0.375, which is not to be half way between two steps

    def build(b, x):
        y = b.op("add", b.op("nn.conv2d", x, weight, groups=groups, strides=(2, 2)), bias)
        return stored(b, b.op("nn.hard_swish", y), scale, zero, dtype)

    exe = offloading.taken("dnnl.conv2d", "nn.conv2d add nn.hard_swish quantize dequantize", build, (1, 32, 15, 15))
    assert [label.split()[0] for label, _ in offloading.implementations(exe)].count("conv") == 1


@pytest.mark.parametrize(("dtype", "zero"), STORES)
def test_what_does_not_fit_is_cut_off(dtype, zero, offloading):
    """The scale is so small that many results lie outside of what 16 bits hold."""
    weight = RNG.integers(-3, 4, (24, 16)).astype(np.float32)
    build = lambda b, x: stored(b, b.op("matmul", x, weight), 2.0**-15, zero, dtype)  # noqa: E731
    exe = offloading.taken("dnnl.matmul", "matmul quantize dequantize", build, (7, 24))
    limits = np.iinfo(dtype)
    values = exe(RNG.standard_normal((7, 24), np.float32)).numpy()
    assert {values.min(), values.max()} == {(limits.min - zero) * 2.0**-15, (limits.max - zero) * 2.0**-15}


def test_sums_round_before_and_after(offloading):
    weight = RNG.standard_normal((32, 16, 1, 1), np.float32)

    def build(b, x, residual):
        y = stored(b, b.op("nn.conv2d", x, weight), 0.25, 0, "int16")
        return stored(b, b.op("add", y, residual), 0.125, 5, "int16")

    ops = "nn.conv2d quantize dequantize add quantize dequantize"
    offloading.taken("dnnl.conv2d", ops, build, (1, 16, 9, 9), (1, 32, 9, 9))


def test_scales_of_channels_are_left_to_others(offloading):
    weight = RNG.standard_normal((32, 16, 1, 1), np.float32)

    def build(b, x):
        scales, zeros = RNG.uniform(0.1, 0.2, 32).astype(np.float32), np.zeros(32, np.int16)
        codes = b.op("quantize", b.op("nn.conv2d", x, weight), scales, zeros, axis=1, dtype="int16")
        return b.op("dequantize", codes, scales, zeros, axis=1)

    module = offloading.module(build, (1, 16, 9, 9))
    exe = ky.compile(module, backends=["dnnl"])
    assert [" ".join(region.ops) for region in exe.report.regions] == ["nn.conv2d"]
    assert_declined(exe, "dnnl", "dtype", "dnnl.quantize")
    offloading.right(module, exe)
