"""Transposed convolutions of images: convolutions make the phases of a stride, a copy puts them in their places."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_dnnl import primitive, processor
from kernelyard_dnnl.primitives import transposed_images

RELU = {"kind": "eltwise", "algorithm": "relu"}


def numbers(*shape):
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def spread(x, weight, bias=None, strides=None, begin=0, end=0):
    """Each pixel of the data adds its window to the result, of which some is left out on both sides."""
    count, _, *space = x.shape
    filters, *window = weight.shape[1:]
    strides = strides or window
    sizes = [(i - 1) * s + k + max(-end, 0) for i, s, k in zip(space, strides, window, strict=True)]
    whole = np.zeros((count, filters, *sizes))
    for taps in itertools.product(*map(range, window)):
        part = np.tensordot(weight[(..., *taps)].astype(np.float64), x.astype(np.float64), (0, 1)).swapaxes(0, 1)
        places = (slice(t, t + s * i, s) for t, s, i in zip(taps, strides, space, strict=True))
        whole[(..., *places)] += part
    kept = whole[(..., *(slice(begin, size - max(end, 0)) for size in sizes))]
    return (kept if bias is None else kept + bias.reshape(-1, *[1] * len(space))).astype(np.float32)


def transposed(b, x, weight, bias=None, groups=1, dilation=1, strides=None, begin=0, end=None, post_ops=(), **others):
    """A conv_transpose node; weight: an array, or the entry of an input with its shape."""
    data, shape = x
    entry, array = weight if isinstance(weight, tuple) else (b.constant(weight), weight)
    rank, strides, end = len(shape) - 2, strides or array.shape[2:], begin if end is None else end
    space = [
        (size - 1) * stride + (taps - 1) * dilation + 1 - begin - end
        for size, stride, taps in zip(shape[2:], strides, array.shape[2:], strict=True)
    ]
    operands = {"data": data, "weight": entry, **others} | ({} if bias is None else {"bias": b.constant(bias)})
    return b.kernel(
        "conv_transpose", (shape[0], array.shape[1] * groups, *space), operands, rank=rank, strides=strides,
        padding_begin=(begin,) * rank, padding_end=(end,) * rank, output_padding=(0,) * rank,
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
def test_one_convolution_makes_windows_that_lie_side_by_side(data, window, what, threads, builder, described):
    x, weight = numbers(*data), numbers(data[1], *window)
    bias = numbers(window[0]) if "bias" in what else None
    y = transposed(builder, (builder.input(data), data), weight, bias, post_ops=[RELU] if "relu" in what else [])
    (actual,), ran = builder.run([y], x, threads=threads)
    assert described.count("convolution_forward") >= 1
    assert "deconvolution_forward" not in described
    assert sum(label == "reorder for phases in their places" for label, _ in ran) == 1
    expected = spread(x, weight, bias)
    assert_allclose(actual, expected.clip(0) if "relu" in what else expected)


# (data, window, strides, begin, end, convolutions)
OVERLAPPING = {
    "4 by 4 in steps of 2": ((1, 24, 6, 5), (16, 4, 4), (2, 2), 1, 1, 4),
    "3 by 3 in steps of 2": ((2, 24, 6, 5), (8, 3, 3), (2, 2), 1, 0, 4),
    "from the first tap": ((1, 8, 4, 7), (3, 3, 3), (2, 2), 0, 1, 4),
    "8 by 8 in steps of 4": ((1, 19, 3, 4), (5, 8, 8), (4, 4), 2, 2, 4),
    "16 by 16 in steps of 8": ((1, 21, 4, 3), (21, 16, 16), (8, 8), 4, 4, 4),
    "wider than its steps along one dim": ((1, 8, 5, 6), (16, 3, 2), (1, 2), 0, 0, 1),
    "5 by 5 in steps of 2": ((1, 8, 5, 6), (16, 5, 5), (2, 2), 2, 1, 4),
    "volume": ((1, 4, 3, 4, 5), (8, 4, 4, 4), (2, 2, 2), 1, 1, 8),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", OVERLAPPING)
def test_some_convolutions_make_windows_that_overlap(case, threads, builder, described, monkeypatch):
    monkeypatch.setattr(processor, "has_wide_vectors", lambda: False)
    data, window, strides, begin, end, convolutions = OVERLAPPING[case]
    x, weight, bias = numbers(*data), numbers(data[1], *window), numbers(window[0])
    y = transposed(builder, (builder.input(data), data), weight, bias, 1, 1, strides, begin, end, [RELU])
    (actual,), ran = builder.run([y], x, threads=threads)
    assert "deconvolution_forward" not in described
    assert sum(label == "reorder for phases in their places" for label, _ in ran) == convolutions
    assert_allclose(actual, spread(x, weight, bias, strides, begin, end).clip(0))


@pytest.mark.parametrize(
    ("has_wide_vectors", "filters"), [(True, 16), (False, transposed_images.FEW_FILTERS + 1)], ids=["AVX-512", "many"]
)
def test_windows_that_overlap_are_the_library_s_where_that_is_as_fast(
    has_wide_vectors, filters, builder, described, monkeypatch
):
    monkeypatch.setattr(processor, "has_wide_vectors", lambda: has_wide_vectors)
    x, weight, bias = numbers(1, 24, 6, 5), numbers(24, filters, 4, 4), numbers(filters)
    y = transposed(builder, (builder.input(x.shape), x.shape), weight, bias, strides=(2, 2), begin=1)
    (actual,), _ = builder.run([y], x)
    assert "deconvolution_forward" in described
    assert_allclose(actual, spread(x, weight, bias, (2, 2), 1, 1))


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
    made = spread(x, weight, bias)
    assert_allclose(between, made)
    assert_allclose(actual, np.einsum("nchw,fc->nfhw", made, pointwise[:, :, 0, 0]))


@pytest.mark.parametrize(
    ("window", "how"),
    [
        ((16, 2, 2), {}),
        ((16, 3, 3), {"strides": (2, 2), "begin": 1, "bias": numbers(16)}),
        ((16, 2, 2), {"strides": (3, 3), "bias": numbers(16)}),
        ((16, 5, 5), {"strides": (2, 2), "begin": 3, "end": 4, "bias": numbers(16)}),
        ((16, 2, 2), {"dilation": 2, "strides": (2, 2), "bias": numbers(16)}),
        ((16, 2, 2), {"groups": 2, "bias": numbers(32)}),
        ((16, 1, 1), {"bias": numbers(16)}),
    ],
    ids=["neither bias nor post-ops", "odd", "gaps", "pixels nobody reads", "dilated", "groups", "one pixel"],
)
def test_what_is_left_to_the_library(window, how, builder, described, monkeypatch):
    monkeypatch.setattr(processor, "has_wide_vectors", lambda: False)
    x, weight = numbers(1, 24, 6, 5), numbers(24, *window)
    y = transposed(builder, (builder.input(x.shape), x.shape), weight, **how)
    (actual,), _ = builder.run([y], x)
    assert "deconvolution_forward" in described
    if not how.keys() & {"groups", "dilation"} and how.get("strides") != (3, 3):
        begin = how.get("begin", 0)
        strides, end = how.get("strides"), how.get("end", begin)
        assert_allclose(actual, spread(x, weight, how.get("bias"), strides, begin, end))


def test_other_post_ops_are_applied_to_what_the_library_makes(builder, described):
    """A factor for each pixel is none for each phase."""
    x, weight, bias, factors = numbers(1, 24, 6, 5), numbers(24, 16, 2, 2), numbers(16), numbers(1, 1, 12, 10)
    data, scales = builder.input(x.shape), builder.input(factors.shape)
    post_ops = [{"kind": "binary", "algorithm": "mul", "role": "post0"}]
    y = transposed(builder, (data, x.shape), weight, bias, post_ops=post_ops, post0=scales)
    (actual,), _ = builder.run([y], x, factors)
    assert "deconvolution_forward" in described
    assert_allclose(actual, spread(x, weight, bias) * factors)


def test_weights_that_come_at_run_time_are_the_library_s(builder, described):
    x, weight, bias = numbers(1, 24, 6, 5), numbers(24, 16, 2, 2), numbers(16)
    data, given = builder.input(x.shape), builder.input(weight.shape)
    y = transposed(builder, (data, x.shape), (given, weight), bias)
    (actual,), _ = builder.run([y], x, weight)
    assert "deconvolution_forward" in described
    assert_allclose(actual, spread(x, weight, bias))


@pytest.mark.parametrize("codegen", ["json", "c"])
@pytest.mark.parametrize("window", [2, 4])
def test_a_decoder_of_images(window, codegen, monkeypatch):
    """From operators: scales after a convolution are part of its weights; sizes are symbolic where that can be."""
    monkeypatch.setattr(processor, "has_wide_vectors", lambda: False)
    b = FunctionBuilder()
    space = (dims.symbol("h"), dims.symbol("w")) if codegen == "json" else (6, 7)
    y = b.input("x", (1, 32, *space))
    for channels in (32, 16):
        y = b.op(
            "nn.conv2d_transpose", y, numbers(channels, channels // 2, window, window) / 4, strides=(2, 2),
            padding=(window // 2 - 1,) * 4, output_padding=(0, 0), dilation=(1, 1), groups=1,
        )  # fmt: skip
        y = b.op("multiply", y, numbers(channels // 2, 1, 1))
        y = b.op("nn.relu", b.op("add", y, numbers(1, channels // 2, 1, 1)))
    module = IRModule({"main": b.function(y)})
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": codegen}})
    assert_offloaded(exe, "dnnl", "dnnl.conv2d_transpose", count=2)
    for height, width in ((6, 7), (1, 9), (16, 4), (6, 7)) if codegen == "json" else ((6, 7),):
        x = numbers(1, 32, height, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
