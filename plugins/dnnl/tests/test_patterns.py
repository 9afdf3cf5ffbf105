"""Matrix products and convolutions with everything that may follow them: each is one composite, and right.

Every test asserts first that the whole program became one composite of the expected pattern and operators.
"""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_dnnl.patterns import MAX_STAGES

# label -> (op, attributes); positive: only defined, or only interesting, for positive numbers.
ACTIVATIONS = {
    "relu": ("nn.relu", {}),
    "relu6": ("clip", {"min": 0.0, "max": 6.0}),
    "clip": ("clip", {"min": -0.5, "max": 0.75}),
    "clip below": ("clip", {"min": -0.5}),
    "clip above": ("clip", {"max": 0.5}),
    "leaky_relu": ("nn.leaky_relu", {"alpha": 0.2}),
    "elu": ("nn.elu", {"alpha": 0.7}),
    "sigmoid": ("sigmoid", {}),
    "hard_sigmoid": ("nn.hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "hard_swish": ("nn.hard_swish", {}),
    "tanh": ("tanh", {}),
    "swish": ("nn.silu", {}),
    "mish": ("nn.mish", {}),
    "gelu erf": ("nn.gelu", {}),
    "gelu tanh": ("nn.gelu_tanh", {}),
    "exp": ("exp", {}),
    "abs": ("abs", {}),
    "square": ("square", {}),
    "softplus": ("nn.softplus", {}),
}
OF_POSITIVE = {"sqrt": ("sqrt", {}), "log": ("log", {}), "reciprocal": ("reciprocal", {}), "rsqrt": ("rsqrt", {})}


def weights(*shape, scale=0.3, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def positive(*shape):
    return np.random.default_rng(1).uniform(0.1, 0.4, shape).astype(np.float32)


def conv(b, x, w, groups=1, strides=None, padding=None, dilation=None):
    rank = w.ndim - 2
    return b.op(
        f"nn.conv{rank}d", x, w, strides=strides or (1,) * rank, padding=padding or (1,) * (2 * rank),
        dilation=dilation or (1,) * rank, groups=groups,
    )  # fmt: skip


def conv_transpose(b, x, w, groups=1, strides=None, padding=None, dilation=None, output_padding=None):
    rank = w.ndim - 2
    return b.op(
        f"nn.conv{rank}d_transpose", x, w, strides=strides or (2,) * rank, padding=padding or (0,) * (2 * rank),
        dilation=dilation or (1,) * rank, groups=groups, output_padding=output_padding or (0,) * rank,
    )  # fmt: skip


# What the activations are tried on: pattern -> (operator, shape of the data, weights, shape of a bias)
LINEAR = {
    "dnnl.matmul": ("matmul", (5, 24), (24, 32), (32,)),
    "dnnl.conv1d": ("nn.conv1d", (2, 8, 12), (16, 8, 3), (1, 16, 1)),
    "dnnl.conv2d": ("nn.conv2d", (1, 8, 7, 6), (16, 8, 3, 3), (1, 16, 1, 1)),
    "dnnl.conv3d": ("nn.conv3d", (1, 4, 4, 5, 6), (8, 4, 3, 3, 3), (1, 8, 1, 1, 1)),
    "dnnl.conv1d_transpose": ("nn.conv1d_transpose", (1, 8, 6), (8, 16, 2), (1, 16, 1)),
    "dnnl.conv2d_transpose": ("nn.conv2d_transpose", (1, 8, 5, 4), (8, 16, 2, 2), (1, 16, 1, 1)),
    "dnnl.conv3d_transpose": ("nn.conv3d_transpose", (1, 4, 3, 3, 3), (4, 8, 2, 2, 2), (1, 8, 1, 1, 1)),
}


def linear(b, op, x, w):
    if op == "matmul":
        return b.op("matmul", x, w)
    return conv_transpose(b, x, w) if op.endswith("transpose") else conv(b, x, w)


def result_shape(offloading, op, data, weight):
    make = positive(*weight)
    return offloading.module(lambda b, x: linear(b, op, x, make), data)["main"].result_type.shape


# --- bias and activation ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pattern", LINEAR)
@pytest.mark.parametrize("activation", [*ACTIVATIONS, *OF_POSITIVE])
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_activation(pattern, activation, has_bias, offloading):
    op, data, weight, bias = LINEAR[pattern]
    name, attrs = (ACTIVATIONS | OF_POSITIVE)[activation]
    is_positive = activation in OF_POSITIVE
    w = positive(*weight) if is_positive else weights(*weight)
    beta = positive(*bias) if is_positive else weights(*bias, seed=2)

    def build(b, x):
        y = linear(b, op, x, w)
        return b.op(name, b.op("add", y, beta) if has_bias else y, **attrs)

    offloading.taken(pattern, f"{op} add {name}" if has_bias else f"{op} {name}", build, data, positive=is_positive)


@pytest.mark.parametrize("pattern", LINEAR)
def test_round(pattern, offloading):
    """Sums far from halves, so that another order of summation does not round to another side."""
    op, data, weight, bias = LINEAR[pattern]
    w, beta = np.ones(weight, np.float32), np.full(bias, 0.3, np.float32)
    module = offloading.module(lambda b, x: b.op("round", b.op("add", linear(b, op, x, w), beta)), data)
    exe = ky.compile(module, backends=["dnnl"])
    assert [(r.pattern, r.ops) for r in exe.report.regions] == [(pattern, (op, "add", "round"))]
    x = np.random.default_rng(0).integers(-5, 6, data).astype(np.float32)
    assert_allclose(exe(x), evaluate(module, [x])[0])


@pytest.mark.parametrize("pattern", LINEAR)
@pytest.mark.parametrize(
    ("ops", "steps"),
    [("multiply", [("multiply", 0.5)]), ("multiply add", [("multiply", -1.5), ("add", 0.25)]), ("add divide", [("add", 1.0), ("divide", 3.0)]), ("negative", [("negative",)])],
    ids=["scale", "scale and shift", "shift and quotient", "negative"],
)  # fmt: skip
def test_linear_function_after_an_activation(pattern, ops, steps, offloading):
    """Scalars, after an activation so that they cannot be folded into the weights."""
    op, data, weight, _ = LINEAR[pattern]
    w = weights(*weight)

    def build(b, x):
        y = b.op("tanh", linear(b, op, x, w))
        for name, *value in steps:
            y = b.op(name, y, *value)
        return y

    offloading.taken(pattern, f"{op} tanh {ops}", build, data)


@pytest.mark.parametrize("pattern", LINEAR)
@pytest.mark.parametrize("op", ["subtract", "divide"])
@pytest.mark.parametrize("operand", ["scalar", "tensor"])
def test_the_result_on_the_right_of_an_operator(pattern, op, operand, offloading):
    """1 - sigmoid(y), 1 / (1 + ...), r - y, r / y"""
    anchor, data, weight, _ = LINEAR[pattern]
    w, shape = positive(*weight), result_shape(offloading, anchor, data, weight)
    inputs = [data] if operand == "scalar" else [data, shape]

    def build(b, x, r=None):
        y = b.op("sqrt", linear(b, anchor, x, w))
        return b.op(op, 3.0 if r is None else r, y)

    offloading.taken(pattern, f"{anchor} sqrt {op}", build, *inputs, positive=True)


# --- residuals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pattern", LINEAR)
@pytest.mark.parametrize("op", ["add", "multiply", "subtract", "divide"])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
def test_residual(pattern, op, place, has_bias, offloading):
    anchor, data, weight, bias = LINEAR[pattern]
    w, beta = weights(*weight), weights(*bias, seed=2)
    shape = result_shape(offloading, anchor, data, weight)

    def build(b, x, r):
        y = linear(b, anchor, x, w)
        y = b.op("add", y, beta) if has_bias else y
        if place == "before":
            return b.op("nn.gelu", b.op(op, y, r))
        return b.op(op, b.op("nn.gelu", y), r)

    ops = [op, "nn.gelu"] if place == "before" else ["nn.gelu", op]
    names = " ".join([anchor, *(["add"] if has_bias else []), *ops])
    offloading.taken(pattern, names, build, data, shape, positive=op == "divide")


@pytest.mark.parametrize("activation", ["relu", "hard_swish", "sigmoid", "gelu erf"])
@pytest.mark.parametrize("first", ["left", "right"])
def test_residual_in_either_order_before_and_after(activation, first, offloading):
    w, name = weights(16, 8, 3, 3), ACTIVATIONS[activation][0]

    def build(b, x, r, s):
        y = conv(b, x, w)
        y = b.op("add", *((y, r) if first == "left" else (r, y)))
        y = b.op(name, y)
        return b.op("multiply", *((y, s) if first == "left" else (s, y)))

    shape = (1, 16, 7, 6)
    offloading.taken("dnnl.conv2d", f"nn.conv2d add {name} multiply", build, (1, 8, 7, 6), shape, shape)


@pytest.mark.parametrize("shape", [(1, 16, 7, 6), (1, 16, 1, 1), (16, 1, 1), (7, 6), (6,), (1, 1, 7, 6), ()], ids=str)
def test_residual_that_broadcasts(shape, offloading):
    w = weights(16, 8, 3, 3)

    def build(b, x, r):
        return b.op("add", b.op("multiply", b.op("tanh", conv(b, x, w)), r), r)

    offloading.taken("dnnl.conv2d", "nn.conv2d tanh multiply add", build, (1, 8, 7, 6), shape)


def test_the_data_is_the_residual(offloading):
    def build(b, x, w):  # weights that are an input: added to constant ones, an identity is no residual any more
        return b.op("add", b.op("nn.conv2d", x, w, padding=(1, 1, 1, 1)), x)

    offloading.taken("dnnl.conv2d", "nn.conv2d add", build, (2, 8, 5, 5), (8, 8, 3, 3))


def test_as_many_stages_as_there_may_be(offloading):
    w = weights(12, 9)
    ops = ["tanh", "abs", "sigmoid", "nn.relu", "exp", "tanh"]

    def build(count):
        def program(b, x):
            y = b.op("matmul", x, w)
            for op in ops[:count]:
                y = b.op(op, y)
            return y

        return program

    offloading.taken("dnnl.matmul", " ".join(["matmul", *ops[:MAX_STAGES]]), build(MAX_STAGES), (3, 12))
    module = offloading.module(build(MAX_STAGES + 1), (3, 12))
    exe = ky.compile(module, backends=["dnnl"])
    assert [len(region.ops) for region in exe.report.regions] == [1, MAX_STAGES + 1]
    offloading.right(module, exe)


# --- bias shapes ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(1, 16, 1, 1), (16, 1, 1)], ids=str)
@pytest.mark.parametrize("is_constant", [True, False])
def test_bias_of_a_convolution(shape, is_constant, offloading):
    w, beta = weights(16, 8, 3, 3), weights(*shape)
    if is_constant:
        exe = offloading.taken(
            "dnnl.conv2d", "nn.conv2d add", lambda b, x: b.op("add", conv(b, x, w), beta), (1, 8, 6, 6)
        )
    else:
        exe = offloading.taken(
            "dnnl.conv2d", "nn.conv2d add", lambda b, x, c: b.op("add", conv(b, x, w), c), (1, 8, 6, 6), shape
        )
    assert roles(exe) == ["data", "weight", "bias"]


@pytest.mark.parametrize("shape", [(9,), (1, 9), (1, 1, 9)], ids=str)
@pytest.mark.parametrize("is_constant", [True, False])
def test_bias_of_a_product(shape, is_constant, offloading):
    w, beta = weights(12, 9), weights(*shape)
    if is_constant:
        exe = offloading.taken(
            "dnnl.matmul", "matmul add", lambda b, x: b.op("add", b.op("matmul", x, w), beta), (2, 5, 12)
        )
    else:
        exe = offloading.taken(
            "dnnl.matmul", "matmul add", lambda b, x, c: b.op("add", b.op("matmul", x, w), c), (2, 5, 12), shape
        )
    assert roles(exe) == ["a", "b", "bias"]


def test_a_column_is_no_bias(offloading):
    w = weights(12, 9)
    exe = offloading.taken(
        "dnnl.matmul", "matmul add", lambda b, x, c: b.op("add", b.op("matmul", x, w), c), (5, 12), (5, 1)
    )
    assert roles(exe) == ["a", "b", "post0"]


def roles(exe):
    """The operands' roles in the one kernel of the program."""
    graphs = [graph for module in exe.modules if module.kind == "dnnl" for graph in map(module.graph, module.symbols())]
    kernels = [node for graph in graphs for node in graph.nodes if node.kind == "kernel"]
    assert len(kernels) == 1
    return [role for role, _ in kernels[0].inputs]
