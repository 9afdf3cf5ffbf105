"""Convolutions over sequences as matrix products: which are, and their numbers."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard_dnnl import processor
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitives import strided_rows
from kernelyard_dnnl.runtime import DnnlRuntime


def weight(filters, channels, taps):
    return np.random.default_rng(taps).standard_normal((filters, channels, taps), dtype=np.float32) / 8


def kinds(exe, threads=1):
    """Return what oneDNN runs, in order, without copies into other layouts."""
    (runtime,) = [each for each in exe.modules if isinstance(each, DnnlRuntime)]
    (symbol,) = runtime.symbols()
    codes = [operation.code for operation in runtime.plan(symbol, {}, threads).operations]
    return [code.recipe.kind for code in codes if isinstance(code, Primitive) and code.recipe.kind != "reorder"]


@pytest.fixture
def _few_are_large(monkeypatch):
    monkeypatch.setattr(strided_rows, "LARGE_WEIGHTS", 0)
    monkeypatch.setattr(processor, "has_wide_vectors", lambda: True)


@pytest.mark.usefixtures("_few_are_large")
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(("taps", "stride", "products"), [(3, 2, 2), (4, 2, 2), (5, 2, 3), (8, 5, 2)])
def test_a_product_for_each_stride_in_the_window(images, taps, stride, products, offloading):
    def build(b, x):
        return b.op("nn.conv1d", x, weight(24, 16, taps), strides=(stride,))

    exe = offloading.taken("dnnl.conv1d", "nn.conv1d", build, (images, 16, 64 * stride + taps))
    assert kinds(exe) == ["matmul"] * products


@pytest.mark.usefixtures("_few_are_large")
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("activation", ["nn.relu", "nn.gelu"])
def test_what_follows_comes_once_and_last(images, activation, offloading):
    bias = np.random.default_rng(1).standard_normal((1, 24, 1), dtype=np.float32)

    def build(b, x, residual):
        made = b.op("nn.conv1d", x, weight(24, 16, 5), strides=(2,))
        return b.op(activation, b.op("add", b.op("add", made, bias), residual))

    steps = f"nn.conv1d add add {activation}"
    exe = offloading.taken("dnnl.conv1d", steps, build, (images, 16, 143), (images, 24, 70))
    assert kinds(exe) == ["matmul"] * 3


@pytest.mark.usefixtures("_few_are_large")
def test_an_image_one_pixel_high_is_a_sequence(offloading):
    def build(b, x):
        return b.op("nn.conv2d", x, weight(24, 16, 3)[:, :, None], strides=(1, 2))

    exe = offloading.taken("dnnl.conv2d", "nn.conv2d", build, (1, 16, 1, 161))
    assert kinds(exe) == ["matmul"] * 2


@pytest.mark.usefixtures("_few_are_large")
@pytest.mark.parametrize(
    ("length", "taps", "attrs"),
    [
        (161, 3, {"strides": (1,)}),
        (161, 2, {"strides": (2,)}),
        (161, 3, {"strides": (2,), "padding": (1, 1)}),
        (161, 3, {"strides": (2,), "dilation": (2,)}),
        (61, 3, {"strides": (2,)}),
    ],
    ids=str,
)
def test_other_windows_stay_convolutions(length, taps, attrs, offloading):
    build = lambda b, x: b.op("nn.conv1d", x, weight(24, 16, taps), **attrs)  # noqa: E731
    exe = offloading.taken("dnnl.conv1d", "nn.conv1d", build, (1, 16, length))
    assert kinds(exe) == ["convolution_forward"]


@pytest.mark.usefixtures("_few_are_large")
@pytest.mark.parametrize(("windows", "kind"), [(599, "convolution_forward"), (600, "matmul")])
def test_more_windows_are_needed_with_avx2(windows, kind, offloading, monkeypatch):
    monkeypatch.setattr(processor, "has_wide_vectors", lambda: False)
    build = lambda b, x: b.op("nn.conv1d", x, weight(24, 16, 3), strides=(2,))  # noqa: E731
    exe = offloading.taken("dnnl.conv1d", "nn.conv1d", build, (1, 16, 2 * windows + 1))
    assert set(kinds(exe)) == {kind}


def test_small_weights_stay_convolutions(offloading):
    build = lambda b, x: b.op("nn.conv1d", x, weight(24, 16, 3), strides=(2,))  # noqa: E731
    exe = offloading.taken("dnnl.conv1d", "nn.conv1d", build, (1, 16, 161))
    assert kinds(exe) == ["convolution_forward"]
