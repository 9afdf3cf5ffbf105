"""Transposed convolutions whose windows lie side by side: one convolution makes the windows of all pixels."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_dnnl import primitive

RELU = {"kind": "eltwise", "algorithm": "relu"}


def numbers(*shape):
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def windows(x, weight, bias=None):
    """Return the window that each pixel of the data makes, in its place."""
    count, _, *space = x.shape
    filters, *window = weight.shape[1:]
    rank = len(space)
    made = np.tensordot(x.astype(np.float64), weight.astype(np.float64), (1, 0))  # (n, space..., filters, window...)
    pairs = [axis for dim in range(rank) for axis in (1 + dim, 2 + rank + dim)]
    made = made.transpose(0, 1 + rank, *pairs).reshape(
        count, filters, *(size * each for size, each in zip(space, window, strict=True))
    )
    return made if bias is None else made + bias.reshape(-1, *[1] * rank)


def transposed(b, x, weight, bias=None, groups=1, dilation=1, strides=None, begin=0, post_ops=(), **others):
    """A conv_transpose node; weight: an array, or the entry of an input with its shape."""
    data, shape = x
    entry, array = weight if isinstance(weight, tuple) else (b.constant(weight), weight)
    rank, strides = len(shape) - 2, strides or array.shape[2:]
    spread = [
        (size - 1) * stride + (taps - 1) * dilation + 1 - 2 * begin
        for size, stride, taps in zip(shape[2:], strides, array.shape[2:], strict=True)
    ]
    operands = {"data": data, "weight": entry, **others} | ({} if bias is None else {"bias": b.constant(bias)})
    return b.kernel(
        "conv_transpose", (shape[0], array.shape[1] * groups, *spread), operands, rank=rank, strides=strides,
        padding_begin=(begin,) * rank, padding_end=(begin,) * rank, output_padding=(0,) * rank,
        dilation=(dilation,) * rank, groups=groups, post_ops=list(post_ops),
    )  # fmt: skip


@pytest.fixture
def described(monkeypatch):
    """The kinds of primitives that the library is asked about."""
    kinds: list[str] = []
    create = primitive._create_descriptor
    monkeypatch.setattr(
        primitive, "_create_descriptor", lambda recipe, threads: kinds.append(recipe.kind) or create(recipe, threads)
    )
    primitive.primitive_of.cache_clear()
    return kinds


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("what", ["bias", "bias, relu", "relu"])
@pytest.mark.parametrize(
    ("data", "window"),
    [
        ((1, 24, 9, 8), (24, 2, 2)),
        ((2, 24, 7, 5), (1, 2, 2)),
        ((1, 19, 6, 3), (5, 4, 4)),
        ((1, 8, 1, 6), (16, 3, 1)),
        ((2, 8, 5, 1), (16, 1, 2)),
        ((1, 4, 3, 4, 5), (8, 2, 3, 2)),
    ],
    ids=str,
)
def test_one_convolution_makes_the_windows_of_all_pixels(data, window, what, threads, builder, described):
    x, weight = numbers(*data), numbers(data[1], *window)
    bias = numbers(window[0]) if "bias" in what else None
    y = transposed(builder, (builder.input(data), data), weight, bias, post_ops=[RELU] if "relu" in what else [])
    (actual,), ran = builder.run([y], x, threads=threads)
    assert "deconvolution_forward" not in described
    assert any(label == "reorder for windows side by side" for label, _ in ran)
    expected = windows(x, weight, bias)
    assert_allclose(actual, (expected.clip(0) if "relu" in what else expected).astype(np.float32))


def test_what_follows_reads_it_channels_last(builder, described):
    x, weight, bias, pointwise = numbers(1, 24, 6, 5), numbers(24, 16, 2, 2), numbers(16), numbers(8, 16, 1, 1)
    y = transposed(builder, (builder.input(x.shape), x.shape), weight, bias)
    z = builder.kernel(
        "conv", (1, 8, 12, 10), {"data": y, "weight": builder.constant(pointwise)}, rank=2, strides=(1, 1),
        padding_begin=(0, 0), padding_end=(0, 0), dilation=(1, 1), groups=1, post_ops=[],
    )  # fmt: skip
    (actual, between), ran = builder.run([z, y], x)
    assert "deconvolution_forward" not in described
    assert not any(label.startswith("reorder for conv (") for label, _ in ran)
    made = windows(x, weight, bias)
    assert_allclose(between, made.astype(np.float32))
    assert_allclose(actual, np.einsum("nchw,fc->nfhw", made, pointwise[:, :, 0, 0]).astype(np.float32))


@pytest.mark.parametrize(
    ("window", "how"),
    [
        ((16, 2, 2), {}),
        ((16, 3, 3), {"strides": (2, 2), "bias": numbers(16)}),
        ((16, 2, 2), {"strides": (3, 3), "bias": numbers(16)}),
        ((16, 2, 2), {"begin": 1, "bias": numbers(16)}),
        ((16, 2, 2), {"dilation": 2, "strides": (2, 2), "bias": numbers(16)}),
        ((16, 2, 2), {"groups": 2, "bias": numbers(32)}),
        ((16, 1, 1), {"bias": numbers(16)}),
    ],
    ids=["neither bias nor post-ops", "overlapping", "gaps", "padding", "dilated", "groups", "one pixel"],
)
def test_what_is_left_to_the_library(window, how, builder, described):
    x, weight = numbers(1, 24, 6, 5), numbers(24, *window)
    y = transposed(builder, (builder.input(x.shape), x.shape), weight, **how)
    (actual,), _ = builder.run([y], x)
    assert "deconvolution_forward" in described
    if how.keys() <= {"bias"}:
        assert_allclose(actual, windows(x, weight, how.get("bias")).astype(np.float32))


def test_other_post_ops_are_applied_to_what_the_library_makes(builder, described):
    """A factor for each pixel is none for each window."""
    x, weight, bias, factors = numbers(1, 24, 6, 5), numbers(24, 16, 2, 2), numbers(16), numbers(1, 1, 12, 10)
    data, scales = builder.input(x.shape), builder.input(factors.shape)
    post_ops = [{"kind": "binary", "algorithm": "mul", "role": "post0"}]
    y = transposed(builder, (data, x.shape), weight, bias, post_ops=post_ops, post0=scales)
    (actual,), _ = builder.run([y], x, factors)
    assert "deconvolution_forward" in described
    assert_allclose(actual, (windows(x, weight, bias) * factors).astype(np.float32))


def test_weights_that_come_at_run_time_are_the_library_s(builder, described):
    x, weight, bias = numbers(1, 24, 6, 5), numbers(24, 16, 2, 2), numbers(16)
    data, given = builder.input(x.shape), builder.input(weight.shape)
    y = transposed(builder, (data, x.shape), (given, weight), bias)
    (actual,), _ = builder.run([y], x, weight)
    assert "deconvolution_forward" in described
    assert_allclose(actual, windows(x, weight, bias).astype(np.float32))


@pytest.mark.parametrize("codegen", ["json", "c"])
def test_a_decoder_of_images(codegen):
    """From operators: scales after a convolution are part of its weights; sizes are symbolic where that can be."""
    b = FunctionBuilder()
    space = (dims.symbol("h"), dims.symbol("w")) if codegen == "json" else (6, 7)
    y = b.input("x", (1, 32, *space))
    for channels in (32, 16):
        y = b.op(
            "nn.conv2d_transpose", y, numbers(channels, channels // 2, 2, 2) / 4, strides=(2, 2), padding=(0, 0, 0, 0),
            output_padding=(0, 0), dilation=(1, 1), groups=1,
        )  # fmt: skip
        y = b.op("multiply", y, numbers(channels // 2, 1, 1))
        y = b.op("nn.relu", b.op("add", y, numbers(1, channels // 2, 1, 1)))
    module = IRModule({"main": b.function(y)})
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": codegen}})
    assert_offloaded(exe, "dnnl", "dnnl.conv2d_transpose", count=2)
    for height, width in ((6, 7), (1, 9), (16, 4), (6, 7)) if codegen == "json" else ((6, 7),):
        x = numbers(1, 32, height, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
