"""Channels that are scaled before a 1 x 1 convolution: the weights are instead, where they are fewer; else the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.testing import assert_allclose

CHANNELS, FILTERS = 24, 8
IMAGE = (1, CHANNELS, 17, 19)
SCALES = (1, CHANNELS, 1, 1)


def numbers(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def scaled_convolution(
    b,
    x,
    scales,
    shape=IMAGE,
    filters=FILTERS,
    kernel=1,
    groups=1,
    stride=1,
    algorithm="mul",
    post_ops=(),
    swapped=False,
):
    """Both nodes: the image with its channels scaled, and the convolution of it with a bias and an activation."""
    sides = (scales, x) if swapped else (x, scales)
    product = b.kernel(
        "binary", shape, dict(zip("ab", sides, strict=True)), algorithm=algorithm, post_ops=list(post_ops)
    )
    weight = b.constant(numbers(filters, shape[1] // groups, kernel, kernel))
    result = b.kernel(
        "conv", (shape[0], filters, *((size - 1) // stride + 1 for size in shape[2:])),
        {"data": product, "weight": weight, "bias": b.constant(numbers(filters))},
        rank=2, strides=(stride, stride), groups=groups, dilation=(1, 1), padding_begin=(kernel // 2,) * 2,
        padding_end=(kernel // 2,) * 2, post_ops=[{"kind": "eltwise", "algorithm": "relu"}],
    )  # fmt: skip
    return product, result


def multiplies_the_image(ran):
    return any(label.startswith("binary") for label, _ in ran)


def reference(x, scales, filters=FILTERS, stride=1):
    """The image is scaled, whatever its size."""
    weight = numbers(filters, x.shape[1], 1, 1)[:, :, 0, 0].astype(np.float64)
    result = np.einsum("oc,nchw->nohw", weight, (x * scales).astype(np.float64)[:, :, ::stride, ::stride])
    return np.maximum(result + numbers(filters)[:, None, None], 0).astype(np.float32)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_weights_are_scaled(threads, stride, swapped, builder):
    x, scales = numbers(*IMAGE), numbers(*SCALES)
    _, result = scaled_convolution(builder, builder.input(IMAGE), builder.input(SCALES), stride=stride, swapped=swapped)
    (actual,), ran = builder.run([result], x, scales, threads=threads)
    assert not multiplies_the_image(ran)
    assert_allclose(actual, reference(x, scales, stride=stride))


@pytest.mark.parametrize(
    "how",
    [
        {"shape": (2, CHANNELS, 17, 19)},
        {"filters": 128},
        {"kernel": 3},
        {"groups": 4},
        {"algorithm": "max"},
        {"post_ops": [{"kind": "eltwise", "algorithm": "tanh"}]},
    ],
    ids=["two images", "more weights than pixels", "a window", "groups", "another operation", "an activation between"],
)
def test_else_the_image_is(how, builder):
    shape = how.get("shape", IMAGE)
    _, result = scaled_convolution(builder, builder.input(shape), builder.input(SCALES), **how)
    _, ran = builder.run([result], numbers(*shape), numbers(*SCALES))
    assert multiplies_the_image(ran)


@pytest.mark.parametrize("scales", [(1, 1, 17, 19), (1, CHANNELS, 17, 1), IMAGE, (1, 1, 1, 1)])
def test_other_factors_scale_the_image(scales, builder):
    x, factors = numbers(*IMAGE), numbers(*scales)
    _, result = scaled_convolution(builder, builder.input(IMAGE), builder.input(scales))
    (actual,), ran = builder.run([result], x, factors)
    assert multiplies_the_image(ran)
    assert_allclose(actual, reference(x, factors))


def test_an_image_that_others_read_is_made(builder):
    x, scales = numbers(*IMAGE), numbers(*SCALES)
    product, result = scaled_convolution(builder, builder.input(IMAGE), builder.input(SCALES))
    (convolved, scaled), _ = builder.run([result, product], x, scales)
    assert_allclose(scaled, x * scales)
    assert_allclose(convolved, reference(x, scales))


@pytest.mark.parametrize("codegen", ["json", "c"])
def test_squeeze_and_excitation(codegen):
    """From operators: the channels' means become their scales; the result is added to the image."""
    b = FunctionBuilder()
    window: dict[str, Any] = {"strides": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1}
    weight = numbers(CHANNELS, CHANNELS, 1, 1) / CHANNELS
    x = b.input("x", IMAGE)
    hidden = b.op("nn.relu", b.op("nn.conv2d", x, weight, **window))
    mean = b.op("mean", hidden, axes=(2, 3), keepdims=True)
    scales = b.op("sigmoid", b.op("nn.conv2d", mean, weight, **window))
    scaled = b.op("multiply", hidden, scales)
    result = b.op("add", b.op("nn.conv2d", scaled, weight, **window), x)
    module = IRModule({"main": b.function(result)})
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": codegen}})
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    feed = numbers(*IMAGE)
    expected = ky.compile(module, backends=[])(feed)
    for threads in (1, 2):
        exe.threads = threads
        assert_allclose(exe(feed), expected)


def test_each_size_chooses():
    """Of an image of open height and width."""
    b = FunctionBuilder()
    window: dict[str, Any] = {"strides": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1}
    x = b.parameter(TensorType((1, CHANNELS, symbol("height"), symbol("width")), "float32"), "x")
    product = b.op("multiply", x, b.op("sigmoid", b.op("mean", x, axes=(2, 3), keepdims=True)))
    module = IRModule({"main": b.function(b.op("nn.conv2d", product, numbers(FILTERS, CHANNELS, 1, 1), **window))})
    exe = ky.compile(module, backends=["dnnl"])
    for height, width in ((3, 5), (17, 19), (2, 1), (40, 8)):
        feed = numbers(1, CHANNELS, height, width)
        assert_allclose(exe(feed), ky.compile(module, backends=[])(feed).numpy())
