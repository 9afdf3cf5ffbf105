"""The scenarios of the Relay-era test_dnnl.py on convolutions and products, by name.

Each program is one composite of oneDNN, with its bias and activation, and gives what the reference gives.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import Constant
from kernelyard.testing import assert_offloaded
from kernelyard_dnnl.primitives import winograd_choice

ROOT = math.sqrt(2)
NORM = {"epsilon": 1e-5, "axis": 1}


def weights(*shape, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def spelled_gelu(b, x):
    grown = b.op("add", b.op("erf", b.op("divide", x, ROOT)), 1.0)
    return b.op("multiply", b.op("multiply", x, grown), 0.5)


def spelled_mish(b, x):
    return b.op("multiply", x, b.op("tanh", b.op("log", b.op("add", b.op("exp", x), 1.0))))


# label -> (operators of the composite, how a model has it)
ACTIVATIONS = {
    "none": ("", lambda b, x: x),
    "relu": ("nn.relu", lambda b, x: b.op("nn.relu", x)),
    "tanh": ("tanh", lambda b, x: b.op("tanh", x)),
    "sigmoid": ("sigmoid", lambda b, x: b.op("sigmoid", x)),
    "clip": ("clip", lambda b, x: b.op("clip", x, min=0.0, max=6.0)),
    "swish": ("nn.silu", lambda b, x: b.op("multiply", x, b.op("sigmoid", x))),
    "gelu": ("nn.gelu", spelled_gelu),
    "mish": ("nn.mish", spelled_mish),
}


def convolution(op, w, bias=None, activation="none", **attrs):
    """A program of one image: a convolution, perhaps a bias for each channel, and an activation."""

    def build(b, x):
        y = b.op(op, x, w, **attrs)
        if bias is not None:
            y = b.op("add", y, bias.reshape(1, -1, *[1] * (w.ndim - 2)))
        return ACTIVATIONS[activation][1](b, y)

    return build


def ops(*names):
    return " ".join(name for name in names if name)


def check(offloading, op, data, weight, channels=None, activation="none", **attrs):
    """One composite of the convolution, with and without a bias; `channels` of a grouped one are those of the result."""
    w = weights(*weight)
    has_bias = (False, True) if channels else (False,)
    for biased in has_bias:
        bias = weights(channels, seed=2) if biased else None
        names = ops(op, "add" if biased else "", ACTIVATIONS[activation][0])
        program = convolution(op, w, bias, activation, **attrs)
        offloading.taken(f"dnnl.{op.removeprefix('nn.')}", names, program, data)


@pytest.mark.parametrize(("data", "weight"), [((1, 3, 224), (16, 3, 3)), ((1, 32, 224), (16, 32, 3))])
def test_conv1d(data, weight, offloading):
    check(offloading, "nn.conv1d", data, weight, padding=(1, 1))


@pytest.mark.parametrize("activation", ["none", "relu", "tanh", "sigmoid"])
def test_conv1d_pattern(activation, offloading):
    check(offloading, "nn.conv1d", (1, 3, 224), (16, 3, 3), 16, activation, padding=(1, 1))


@pytest.mark.parametrize(("weight", "groups"), [((16, 32, 3, 3), 1), ((32, 1, 3, 3), 32), ((32, 2, 3, 3), 16)])
@pytest.mark.parametrize(("padding", "stride", "dilation"), [*itertools.product([0, 1], [1, 2], [1, 2])])
def test_conv2d(weight, groups, padding, stride, dilation, offloading):
    window = {"padding": (padding,) * 4, "strides": (stride,) * 2, "dilation": (dilation,) * 2, "groups": groups}
    check(offloading, "nn.conv2d", (1, 32, 8, 8), weight, **window)


@pytest.mark.parametrize("channels", [32, 3])
def test_conv2d_weights_const(channels, offloading):
    """Weights are constants of the artifact; the image is all that the region is given."""
    w = weights(16, channels, 3, 3)
    exe = offloading.taken("dnnl.conv2d", "nn.conv2d", convolution("nn.conv2d", w), (1, channels, 8, 8))
    (module,) = (each for each in exe.modules if each.kind == "dnnl")
    assert [array.shape for array in module.constants().values()] == [w.shape]
    assert len(module.signature("dnnl_0").inputs) == 1


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv2d_pattern(activation, offloading):
    check(offloading, "nn.conv2d", (1, 32, 8, 8), (16, 32, 3, 3), 16, activation)


def test_conv2d_pattern_with_batch_norm(offloading):
    """bias, batch norm and relu: the norm goes into weights and bias."""

    def build(b, x):
        y = b.op("add", b.op("nn.conv2d", x, weights(16, 32, 3, 3)), weights(1, 16, 1, 1))
        norm = [np.abs(weights(16, seed=i)) + 0.5 for i in range(4)]
        return b.op("nn.relu", b.op("nn.batch_norm", y, *norm, **NORM))

    offloading.taken("dnnl.conv2d", "nn.conv2d add nn.relu", build, (1, 32, 8, 8))


def test_conv2d_bias_sum_relu(offloading):
    """The sum of two convolutions: the second is added to the first in place, and nothing runs by itself."""

    def build(b, x, y):
        first = b.op("add", b.op("nn.conv2d", x, weights(16, 32, 3, 3)), weights(1, 16, 1, 1))
        first = b.op("nn.batch_norm", first, *(np.abs(weights(16, seed=i)) + 0.5 for i in range(4)), **NORM)
        return b.op("nn.relu", b.op("add", first, b.op("nn.conv2d", y, weights(16, 32, 3, 3, seed=3))))

    module = offloading.module(build, (1, 32, 8, 8), (1, 32, 8, 8))
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.conv2d", count=2)
    groups = sorted(region.ops for region in exe.report.regions)
    assert groups == [("nn.conv2d",), ("nn.conv2d", "add", "add", "nn.relu")]
    primitives = [label.split(" (")[0] for label, _ in offloading.implementations(exe)]
    assert [label for label in primitives if not label.startswith("reorder")] == ["conv", "conv"]
    offloading.right(module, exe)


@pytest.mark.parametrize(("weight", "groups"), [((32, 16, 3, 3), 1), ((32, 1, 3, 3), 32), ((32, 4, 3, 3), 16)])
@pytest.mark.parametrize(("padding", "stride"), [*itertools.product([0, 1], [1, 2])])
def test_conv2d_transpose(weight, groups, padding, stride, offloading):
    window = {"padding": (padding,) * 4, "strides": (stride,) * 2, "groups": groups}
    check(offloading, "nn.conv2d_transpose", (1, 32, 8, 8), weight, **window)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv2d_transpose_pattern(activation, offloading):
    check(offloading, "nn.conv2d_transpose", (1, 32, 8, 8), (32, 16, 3, 3), 16, activation)


@pytest.mark.parametrize("padding", [(0,) * 6, (0, 0, 0, 1, 1, 1)], ids=["no padding", "padded behind"])
@pytest.mark.parametrize("channels", [32, 3])
def test_conv3d(padding, channels, offloading, monkeypatch):
    monkeypatch.setattr(
        winograd_choice, "vector_lanes", lambda: 0
    )  # its sums have bounds of their own: test_winograd.py
    check(offloading, "nn.conv3d", (1, channels, 8, 8, 8), (16, channels, 3, 3, 3), padding=padding)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv3d_pattern(activation, offloading):
    check(offloading, "nn.conv3d", (1, 16, 6, 6, 6), (8, 16, 3, 3, 3), 8, activation)


@pytest.mark.parametrize(
    "window",
    [{}, {"strides": (2, 2, 2)}, {"strides": (2, 2, 2), "output_padding": (1, 1, 1)}],
    ids=["plain", "strides", "output padding"],
)
def test_conv3d_transpose(window, offloading):
    check(offloading, "nn.conv3d_transpose", (1, 32, 8, 8, 8), (32, 16, 3, 3, 3), **window)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv3d_transpose_pattern(activation, offloading):
    check(offloading, "nn.conv3d_transpose", (1, 16, 6, 6, 6), (16, 8, 3, 3, 3), 8, activation)


@pytest.mark.parametrize(
    ("data", "weight", "window"),
    [
        ((1, 8, 5, 5), (16, 8, 3, 3), {"padding": (1,) * 4}),
        ((1, 8, 5, 5), (16, 4, 3, 3), {"groups": 2}),
        ((1, 16, 5, 5), (16, 1, 3, 3), {"groups": 16}),
        ((1, 8, 5, 5), (16, 8, 3, 3), {"padding": (2,) * 4, "dilation": (2, 2)}),
    ],
    ids=["Base", "Group", "DW", "Dilated"],
)
def test_conv2d_plus(data, weight, window, offloading):
    check(offloading, "nn.conv2d", data, weight, 16, **window)


def test_conv2d_plus_channels_last(offloading):
    """NHWC: the convolution between two permutations, all three of oneDNN; there is no layout in the vocabulary."""

    def build(b, x):
        y = b.op("nn.conv2d", b.op("permute_dims", x, axes=(0, 3, 1, 2)), weights(16, 8, 3, 3), padding=(1,) * 4)
        return b.op("add", b.op("permute_dims", y, axes=(0, 2, 3, 1)), weights(16, seed=2))

    module = offloading.module(build, (1, 5, 5, 8))
    exe = ky.compile(module, backends=["dnnl"])
    assert {row.backend for row in exe.report.placed} == {"dnnl"}, str(exe.report)
    assert len({region.function for region in exe.report.regions}) == 1
    offloading.right(module, exe)


# --- products ---------------------------------------------------------------------------------------------------------
def dense(b, x, w):
    """x @ w.T, as Relay's dense has its weights."""
    return b.op("matmul", x, b.op("permute_dims", w, axes=(1, 0)) if not isinstance(w, np.ndarray) else w.T.copy())


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("is_transposed", [True, False])
def test_bmm(is_constant, is_transposed, offloading):
    shape = (1, 3, 4) if is_transposed else (1, 4, 3)

    def build(b, x, k=None):
        k = k if k is not None else Constant(weights(*shape))
        return b.op("matmul", x, b.op("permute_dims", k, axes=(0, 2, 1)) if is_transposed else k)

    reads_transposed = is_transposed and not is_constant
    pattern = "dnnl.transposed_matmul" if reads_transposed else "dnnl.matmul"
    inputs = [(1, 2, 4)] if is_constant else [(1, 2, 4), shape]
    offloading.taken(pattern, "permute_dims matmul" if reads_transposed else "matmul", build, *inputs)


@pytest.mark.parametrize(("units", "activation"), [(32, "none"), (1, "none"), (32, "gelu")])
def test_dense(units, activation, offloading):
    name, act = ACTIVATIONS[activation]
    offloading.taken("dnnl.matmul", ops("matmul", name), lambda b, x: act(b, dense(b, x, weights(units, 16))), (1, 16))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dense_pattern(has_bias, activation, offloading):
    name, act = ACTIVATIONS[activation]

    def build(b, x):
        y = dense(b, x, weights(32, 16))
        return act(b, b.op("add", y, weights(32)) if has_bias else y)

    offloading.taken("dnnl.matmul", ops("matmul", "add" if has_bias else "", name), build, (1, 16))


@pytest.mark.parametrize("has_sum", [False, True], ids=["Base", "WithSum"])
def test_dense_plus(has_sum, offloading):
    def build(b, x, r=None):
        y = b.op("add", dense(b, x, weights(16, 10)), weights(16))
        return y if r is None else b.op("add", y, r)

    offloading.taken("dnnl.matmul", ops("matmul add", "add" if has_sum else ""), build, (2, 10), *[(2, 16)] * has_sum)


def test_dense_bias_sum(offloading):
    def build(b, x, y):
        first = b.op("add", dense(b, x, weights(16, 32)), weights(16))
        return b.op("add", first, dense(b, y, weights(16, 32, seed=4)))

    module = offloading.module(build, (4, 32), (4, 32))
    exe = ky.compile(module, backends=["dnnl"])
    assert sorted(region.ops for region in exe.report.regions) == [("matmul",), ("matmul", "add", "add")]
    assert {row.backend for row in exe.report.placed} == {"dnnl"}
    offloading.right(module, exe)


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_rewrite_dense_bias_gelu_reshape_last(activation, offloading):
    """The reshape between a product and its bias goes behind them (`SinkReshape`): all is one composite."""
    name, act = ACTIVATIONS[activation]

    def build(b, x):
        y = b.op("reshape", dense(b, x, weights(32, 16)), shape=(1, 1, 32))
        return act(b, b.op("add", y, weights(32)))

    exe = offloading.taken("dnnl.matmul", ops("matmul add", name), build, (1, 16))
    assert [node.op for node in exe.report.nodes][-1] == "reshape"


SCENARIOS = {
    "test_dnnl: conv1d": test_conv1d,
    "test_dnnl: conv1d_pattern": test_conv1d_pattern,
    "test_dnnl: conv2d": test_conv2d,
    "test_dnnl: conv2d_weights_const": test_conv2d_weights_const,
    "test_dnnl: conv2d_pattern": test_conv2d_pattern,
    "test_dnnl: conv2d_pattern, conv2d_bias_bn_relu": test_conv2d_pattern_with_batch_norm,
    "test_dnnl: conv2d_bias_sum_relu": test_conv2d_bias_sum_relu,
    "test_dnnl: conv2d_transpose": test_conv2d_transpose,
    "test_dnnl: conv2d_transpose_pattern": test_conv2d_transpose_pattern,
    "test_dnnl: conv3d": test_conv3d,
    "test_dnnl: conv3d_pattern": test_conv3d_pattern,
    "test_dnnl: conv3d_transpose": test_conv3d_transpose,
    "test_dnnl: conv3d_transpose_pattern": test_conv3d_transpose_pattern,
    "test_dnnl: conv2d_plus": test_conv2d_plus,
    "test_dnnl: conv2d_plus, NHWC": test_conv2d_plus_channels_last,
    "test_dnnl: bmm": test_bmm,
    "test_dnnl: dense": test_dense,
    "test_dnnl: dense_pattern": test_dense_pattern,
    "test_dnnl: dense_plus": test_dense_plus,
    "test_dnnl: dense_bias_sum": test_dense_bias_sum,
    "test_dnnl: rewrite_dense_bias_gelu_reshape_last": test_rewrite_dense_bias_gelu_reshape_last,
}
