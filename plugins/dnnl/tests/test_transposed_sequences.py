"""Transposed convolutions of sequences: one convolution makes all steps of a stride, and its numbers are the same."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose

RELU = {"kind": "eltwise", "algorithm": "relu"}


def numbers(*shape):
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def spread(x, weight, bias, stride, begin, length):
    """Each step of the data adds its window to the result."""
    count, _, steps = x.shape
    taps = weight.shape[2]
    whole = np.zeros((count, weight.shape[1], max((steps - 1) * stride + taps, begin + length)))
    for step in range(steps):
        window = np.einsum("nc,cfk->nfk", x[:, :, step].astype(np.float64), weight.astype(np.float64))
        whole[:, :, step * stride : step * stride + taps] += window
    return (whole[:, :, begin : begin + length] + bias[:, None]).astype(np.float32)


def transposed(b, x, weight, bias, stride, begin, length, groups=1, dilation=1, post_ops=(RELU,), **others):
    """A conv_transpose node; `length`: of its result."""
    return b.kernel(
        "conv_transpose", (others.pop("count", 1), weight.shape[1] * groups, length),
        {"data": x, "weight": b.constant(weight), "bias": b.constant(bias), **others}, rank=1, strides=(stride,),
        padding_begin=(begin,), padding_end=(begin,), output_padding=(0,), dilation=(dilation,), groups=groups,
        post_ops=list(post_ops),
    )  # fmt: skip


def is_spread_by_the_library(ran):
    return any("strided" in implementation or implementation == "conv:any" for _, implementation in ran)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("taps", "stride", "begin", "length"),
    [(16, 8, 4, 96), (8, 4, 2, 48), (4, 4, 0, 48), (4, 2, 1, 24), (2, 2, 0, 24), (9, 3, 2, 38), (11, 4, 3, 49), (8, 4, 0, 52)],
    ids=lambda value: str(value),
)  # fmt: skip
def test_one_convolution_makes_all_steps_of_a_stride(taps, stride, begin, length, threads, builder):
    x, weight, bias = numbers(1, 24, 12), numbers(24, 16, taps), numbers(16)
    y = transposed(builder, builder.input(x.shape), weight, bias, stride, begin, length)
    (actual,), ran = builder.run([y], x, threads=threads)
    assert not is_spread_by_the_library(ran)
    assert_allclose(actual, spread(x, weight, bias, stride, begin, length).clip(0))


def test_weights_that_come_at_run_time(builder):
    x, weight, bias = numbers(1, 24, 12), numbers(24, 16, 8), numbers(16)
    operands = {role: builder.input(value.shape) for role, value in (("data", x), ("weight", weight), ("bias", bias))}
    y = builder.kernel(
        "conv_transpose", (1, 16, 48), operands, rank=1, strides=(4,), padding_begin=(2,), padding_end=(2,),
        output_padding=(0,), dilation=(1,), groups=1, post_ops=[RELU],
    )  # fmt: skip
    (actual,), ran = builder.run([y], x, weight, bias)
    assert not is_spread_by_the_library(ran)
    assert_allclose(actual, spread(x, weight, bias, 4, 2, 48).clip(0))


@pytest.mark.parametrize(("begin", "length"), [(-4, 48), (2, 480)])
def test_steps_that_nothing_makes_are_refused(begin, length, builder):
    """As a damaged file may have them: nothing is read outside of what is made."""
    weight, bias = numbers(24, 16, 8), numbers(16)
    y = transposed(builder, builder.input((1, 24, 12)), weight, bias, 4, begin, length)
    with pytest.raises(KernelyardError):
        builder.run([y], numbers(1, 24, 12))


def test_what_follows_reads_it_in_its_place(builder):
    """Another convolution of the sequence, and a sum with it."""
    x, weight, bias = numbers(1, 24, 12), numbers(24, 16, 8), numbers(16)
    y = transposed(builder, builder.input(x.shape), weight, bias, 4, 2, 48)
    window = numbers(16, 16, 3)
    z = builder.kernel(
        "conv", (1, 16, 48), {"data": y, "weight": builder.constant(window), "post0": y}, rank=1, strides=(1,),
        padding_begin=(1,), padding_end=(1,), dilation=(1,), groups=1, post_ops=[{"kind": "sum", "role": "post0"}],
    )  # fmt: skip
    (actual, between), ran = builder.run([z, y], x)
    made = spread(x, weight, bias, 4, 2, 48).clip(0)
    padded = np.pad(made, ((0, 0), (0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=2)
    assert_allclose(between, made)
    assert_allclose(actual, np.einsum("nclk,fck->nfl", windows, window) + made)
    assert not any(label == "reorder for conv" for label, _ in ran[1:])


@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((2, 24, 12), {"count": 2}),
        ((1, 24, 12), {"groups": 2}),
        ((1, 24, 12), {"dilation": 2}),
        ((1, 24, 12), {"taps": 5}),
        ((1, 24, 12), {"stride": 1}),
    ],
    ids=["two sequences", "groups", "dilated", "a stride that adds many zeros", "no stride"],
)
def test_what_is_left_to_the_library(shape, how, builder):
    how = dict(how)
    taps, stride, groups = how.pop("taps", 8), how.pop("stride", 4), how.get("groups", 1)
    weight, bias = numbers(24, 16 // groups, taps), numbers(16)
    length = 11 * stride + how.get("dilation", 1) * (taps - 1) + 1
    x = numbers(*shape)
    y = transposed(builder, builder.input(shape), weight, bias, stride, 0, length, **how)
    (actual,), ran = builder.run([y], x)
    assert any(label.startswith("conv_transpose") for label, _ in ran)
    if not how.keys() & {"groups", "dilation"}:
        assert_allclose(actual, spread(x, weight, bias, stride, 0, length).clip(0))


def test_other_post_ops_are_applied_to_what_the_library_makes(builder):
    """A factor for each step is none for each phase of a stride."""
    x, weight, bias, factors = numbers(1, 24, 12), numbers(24, 16, 8), numbers(16), numbers(1, 1, 48)
    data, scales = builder.input(x.shape), builder.input(factors.shape)
    post_ops = [{"kind": "binary", "algorithm": "mul", "role": "post0"}]
    y = transposed(builder, data, weight, bias, 4, 2, 48, post_ops=post_ops, post0=scales)
    (actual,), _ = builder.run([y], x, factors)
    assert_allclose(actual, spread(x, weight, bias, 4, 2, 48) * factors)


@pytest.mark.parametrize("codegen", ["json", "c"])
def test_a_generator_of_sound(codegen):
    """From operators, with what comes before and after."""
    b, attrs = FunctionBuilder(), {"dilation": (1,), "groups": 1}
    y = b.input("x", (1, 32, 20))
    for channels, taps, stride in ((32, 8, 4), (16, 4, 2)):
        y = b.op("nn.leaky_relu", y, alpha=0.1)
        weight = numbers(channels, channels // 2, taps) / 8
        y = b.op(
            "nn.conv1d_transpose", y, weight, strides=(stride,), padding=(taps // 4,) * 2, output_padding=(0,), **attrs
        )
        y = b.op("add", y, numbers(1, channels // 2, 1))
        y = b.op("nn.conv1d", y, numbers(channels // 2, channels // 2, 3) / 8, strides=(1,), padding=(1, 1), **attrs)
    module = IRModule({"main": b.function(b.op("tanh", y))})
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": codegen}})
    assert {"dnnl.conv1d_transpose"} <= {region.pattern for region in exe.report.regions}
    x = numbers(1, 32, 20)
    assert_allclose(exe(x), ky.compile(module, backends=[])(x).numpy())
