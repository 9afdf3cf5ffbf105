"""Operators that models spell out in primitive ones: recognised, taken whole, and right."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.testing import assert_allclose, evaluate

SHAPE = (2, 5, 24)


def weights(*shape, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


class Arithmetic:
    """Operators by short names."""

    def __init__(self, b):
        self.b = b

    def __getattr__(self, name):
        op = {"mul": "multiply", "sub": "subtract", "div": "divide", "relu": "nn.relu"}.get(name, name)
        return lambda *args, **attrs: self.b.op(op, *args, **attrs)


ROOT = math.sqrt(2)
TANH_SCALE = math.sqrt(2 / math.pi)


def tanh_argument(o, x):
    return o.mul(o.add(x, o.mul(o.power(x, 3.0), 0.044715)), TANH_SCALE)


# label -> (operator it is, how it is spelled)
ACTIVATIONS = {
    "gelu: x * 0.5 * (1 + erf(x / sqrt 2))": (
        "nn.gelu", lambda o, x: o.mul(o.mul(x, 0.5), o.add(o.erf(o.div(x, ROOT)), 1.0)),
    ),
    "gelu: 0.5 * (x * (1 + erf))": ("nn.gelu", lambda o, x: o.mul(o.mul(x, o.add(o.erf(o.mul(x, 1 / ROOT)), 1.0)), 0.5)),
    "gelu: (1 + erf) * 0.5 * x": ("nn.gelu", lambda o, x: o.mul(o.mul(o.add(1.0, o.erf(o.div(x, ROOT))), 0.5), x)),
    "gelu tanh: cube by power": (
        "nn.gelu_tanh", lambda o, x: o.mul(o.mul(x, 0.5), o.add(o.tanh(tanh_argument(o, x)), 1.0)),
    ),
    "gelu tanh: cube by products": (
        "nn.gelu_tanh",
        lambda o, x: o.mul(o.mul(0.5, x), o.add(1.0, o.tanh(o.mul(o.mul(x, TANH_SCALE), o.add(1.0, o.mul(o.mul(x, x), 0.044715)))))),
    ),
    "hard_swish: x * clip(x + 3, 0, 6) / 6": (
        "nn.hard_swish", lambda o, x: o.div(o.mul(x, o.clip(o.add(x, 3.0), min=0.0, max=6.0)), 6.0),
    ),
    "hard_swish: x * (clip(x + 3, 0, 6) / 6)": (
        "nn.hard_swish", lambda o, x: o.mul(o.div(o.clip(o.add(3.0, x), min=0.0, max=6.0), 6.0), x),
    ),
    "hard_swish: x * hard_sigmoid(x)": (
        "nn.hard_swish", lambda o, x: o.mul(x, o.b.op("nn.hard_sigmoid", x, alpha=1 / 6, beta=0.5)),
    ),
    "hard_sigmoid: clip(x + 3, 0, 6) / 6": (
        "nn.hard_sigmoid", lambda o, x: o.div(o.clip(o.add(x, 3.0), min=0.0, max=6.0), 6.0),
    ),
    "silu: x * sigmoid(x)": ("nn.silu", lambda o, x: o.mul(x, o.sigmoid(x))),
    "silu: sigmoid(x) * x": ("nn.silu", lambda o, x: o.mul(o.sigmoid(x), x)),
    "silu: x / (1 + exp(-x))": ("nn.silu", lambda o, x: o.div(x, o.add(1.0, o.exp(o.negative(x))))),
    "sigmoid: 1 / (1 + exp(-x))": ("sigmoid", lambda o, x: o.div(1.0, o.add(o.exp(o.negative(x)), 1.0))),
    "mish: x * tanh(softplus(x))": ("nn.mish", lambda o, x: o.mul(x, o.tanh(o.b.op("nn.softplus", x)))),
    "mish: x * tanh(log(1 + exp(x)))": ("nn.mish", lambda o, x: o.mul(x, o.tanh(o.log(o.add(o.exp(x), 1.0))))),
    "softplus: log(1 + exp(x))": ("nn.softplus", lambda o, x: o.log(o.add(1.0, o.exp(x)))),
    "relu: max(x, 0)": ("nn.relu", lambda o, x: o.maximum(x, 0.0)),
    "relu6: min(max(x, 0), 6)": ("clip", lambda o, x: o.minimum(o.maximum(x, 0.0), 6.0)),
}  # fmt: skip


@pytest.mark.parametrize("spelling", ACTIVATIONS)
def test_activation_alone(spelling, offloading):
    op, spelled = ACTIVATIONS[spelling]
    offloading.taken("dnnl.elementwise", op, lambda b, x: spelled(Arithmetic(b), x), SHAPE)


@pytest.mark.parametrize("spelling", ACTIVATIONS)
def test_activation_of_a_product_with_bias(spelling, offloading):
    op, spelled = ACTIVATIONS[spelling]
    w, beta = weights(24, 32), weights(32)

    def build(b, x):
        return spelled(Arithmetic(b), b.op("add", b.op("matmul", x, w), beta))

    offloading.taken("dnnl.matmul", f"matmul add {op}", build, SHAPE)


@pytest.mark.parametrize("spelling", ACTIVATIONS)
def test_activation_of_a_convolution_with_a_residual(spelling, offloading):
    op, spelled = ACTIVATIONS[spelling]
    w, beta = weights(8, 4, 3, 3), weights(1, 8, 1, 1)

    def build(b, x, r):
        y = b.op("nn.conv2d", x, w, strides=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1)
        return b.op("add", spelled(Arithmetic(b), b.op("add", y, beta)), r)

    offloading.taken("dnnl.conv2d", f"nn.conv2d add {op} add", build, (1, 4, 6, 5), (1, 8, 6, 5))


# --- norms ------------------------------------------------------------------------------------------------------------
def mean(o, x):
    return o.mean(x, axes=(x.type.rank - 1,), keepdims=True)


def normalised(o, x, *, deviation, centred):
    d = o.sub(x, mean(o, x))
    variance = centred(o, x, d)
    return deviation(o, d, o.add(variance, 1e-5))


DEVIATIONS = {
    "divide by sqrt": lambda o, d, v: o.div(d, o.sqrt(v)),
    "times rsqrt": lambda o, d, v: o.mul(d, o.rsqrt(v)),
    "times 1 / sqrt": lambda o, d, v: o.mul(d, o.div(1.0, o.sqrt(v))),
    "divide by power": lambda o, d, v: o.div(d, o.power(v, 0.5)),
}
VARIANCES = {
    "mean of power": lambda o, x, d: mean(o, o.power(d, 2.0)),
    "mean of product": lambda o, x, d: mean(o, o.mul(d, d)),
    "mean of square minus square of mean": lambda o, x, d: o.sub(mean(o, o.square(x)), o.square(mean(o, x))),
}


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("affine", ["scale and shift", "scale", "neither"])
def test_layer_norm(deviation, variance, affine, offloading):
    gamma, beta = weights(24), weights(24, seed=2)

    def build(b, x):
        o = Arithmetic(b)
        y = normalised(o, x, deviation=DEVIATIONS[deviation], centred=VARIANCES[variance])
        y = y if affine == "neither" else o.mul(y, gamma)
        return o.add(y, beta) if affine == "scale and shift" else y

    offloading.taken("dnnl.layer_norm", "nn.layer_norm", build, SHAPE)


def test_layer_norm_of_symbolic_sizes(offloading):
    def build(b, x):
        o = Arithmetic(b)
        y = normalised(o, x, deviation=DEVIATIONS["divide by sqrt"], centred=VARIANCES["mean of power"])
        return o.add(o.mul(y, weights(24)), weights(24, seed=2))

    n = dims.symbol("n")
    module = offloading.module(build, (n, 5, 24))
    exe = ky.compile(module, backends=["dnnl"])
    assert [(r.pattern, r.ops) for r in exe.report.regions] == [("dnnl.layer_norm", ("nn.layer_norm",))]
    for size in (1, 4, 3):
        offloading.right(module, exe, n=size)


def shifted_exponential(o, x, axis):
    return o.exp(o.sub(x, o.max(x, axes=(axis,), keepdims=True)))


SOFTMAXES = {
    "exp / sum": ("nn.softmax", lambda o, x, a: o.div((e := shifted_exponential(o, x, a)), o.sum(e, axes=(a,), keepdims=True))),
    "exp / sum, not shifted": ("nn.softmax", lambda o, x, a: o.div((e := o.exp(x)), o.sum(e, axes=(a,), keepdims=True))),
    "log of softmax": ("nn.log_softmax", lambda o, x, a: o.log(o.b.op("nn.softmax", x, axis=a))),
    "x - log sum exp": (
        "nn.log_softmax",
        lambda o, x, a: o.sub(
            (s := o.sub(x, o.max(x, axes=(a,), keepdims=True))), o.log(o.sum(o.exp(s), axes=(a,), keepdims=True))
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SOFTMAXES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(spelling, axis, offloading):
    op, spelled = SOFTMAXES[spelling]
    build = lambda b, x: spelled(Arithmetic(b), x, axis)  # noqa: E731
    if axis == 2:
        offloading.taken("dnnl.softmax", op, build, SHAPE)
    else:  # recognised too, and left to a kernel: oneDNN has no code for other axes
        offloading.declined("reference-implementation", "dnnl.softmax", build, SHAPE)


# --- whole blocks, as models have them --------------------------------------------------------------------------------
def test_a_transformer_block_is_one_region(offloading):
    """Everything spelled out in primitive operators, as old exporters do."""
    w = {name: weights(32, 32, seed=i) for i, name in enumerate("qkvo")}
    up, down, gamma, beta = weights(32, 64), weights(64, 32), weights(32), weights(32)

    def heads(b, x, name):
        y = b.op("reshape", b.op("add", b.op("matmul", x, w[name]), beta), shape=(2, 6, 4, 8))
        return b.op("permute_dims", y, axes=(0, 2, 3, 1) if name == "k" else (0, 2, 1, 3))

    def norm(o, x):
        y = normalised(o, x, deviation=DEVIATIONS["divide by sqrt"], centred=VARIANCES["mean of power"])
        return o.add(o.mul(y, gamma), beta)

    def build(b, x):
        o = Arithmetic(b)
        scores = o.div(b.op("matmul", heads(b, x, "q"), heads(b, x, "k")), math.sqrt(8))
        e = shifted_exponential(o, scores, 3)
        context = b.op("matmul", o.div(e, o.sum(e, axes=(3,), keepdims=True)), heads(b, x, "v"))
        context = b.op("reshape", b.op("permute_dims", context, axes=(0, 2, 1, 3)), shape=(2, 6, 32))
        y = norm(o, o.add(o.add(b.op("matmul", context, w["o"]), beta), x))
        gelu = ACTIVATIONS["gelu: x * 0.5 * (1 + erf(x / sqrt 2))"][1]
        return norm(o, o.add(b.op("matmul", gelu(o, b.op("matmul", y, up)), down), y))

    module = offloading.module(build, (2, 6, 32))
    exe = ky.compile(module, backends=["dnnl"])
    assert {row.backend for row in exe.report.placed} <= {"dnnl", "view"}, str(exe.report)
    assert len({region.function for region in exe.report.regions}) == 1
    primitives = [label.split(" (")[0] for label, _ in offloading.implementations(exe)]
    assert primitives.count("matmul") == 8
    assert primitives.count("layer_norm") == 2
    assert primitives.count("softmax") == 1
    assert "eltwise" not in primitives, "activations and residuals are post-ops"
    assert "binary" not in primitives
    offloading.right(module, exe)


def test_squeeze_and_excitation_is_one_region(offloading):
    narrow, wide = weights(4, 16, 1, 1), weights(16, 4, 1, 1)
    one = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}

    def build(b, x):
        o = Arithmetic(b)
        y = b.op("mean", x, axes=(2, 3), keepdims=True)
        y = o.relu(o.add(b.op("nn.conv2d", y, narrow, **one), weights(1, 4, 1, 1)))
        y = o.add(b.op("nn.conv2d", y, wide, **one), weights(1, 16, 1, 1))
        return o.mul(x, ACTIVATIONS["hard_sigmoid: clip(x + 3, 0, 6) / 6"][1](o, y))

    module = offloading.module(build, (2, 16, 7, 5))
    exe = ky.compile(module, backends=["dnnl"])
    assert [(r.pattern, " ".join(r.ops)) for r in exe.report.regions] == [
        ("dnnl.reduce", "mean"),
        ("dnnl.conv2d", "nn.conv2d add nn.relu"),
        ("dnnl.conv2d", "nn.conv2d add nn.hard_sigmoid"),
        ("dnnl.elementwise", "multiply"),
    ]
    assert len({region.function for region in exe.report.regions}) == 1
    offloading.right(module, exe)


def test_what_merely_resembles_is_left_as_it_is(offloading):
    """0.5 * x * (1 + erf(x)) lacks the square root of two: no gelu, and the numbers show it."""

    def build(b, x):
        o = Arithmetic(b)
        return o.mul(o.mul(x, 0.5), o.add(o.erf(x), 1.0))

    module = offloading.module(build, SHAPE)
    exe = ky.compile(module, backends=["dnnl"])
    assert not any("nn.gelu" in region.ops for region in exe.report.regions)
    feeds = offloading.feeds(module)
    assert_allclose(exe(*feeds), evaluate(module, feeds)[0])
