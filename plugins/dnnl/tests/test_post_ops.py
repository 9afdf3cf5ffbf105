"""Post-op chains on every primitive that takes them: each eltwise algorithm, sums, binary operands that broadcast."""

from __future__ import annotations

import math

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import TensorType
from kernelyard.testing import assert_offloaded

F = np.float64
erf = np.vectorize(math.erf, otypes=[F])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# algorithm -> (alpha, beta, reference in float64, domain)
ELTWISE = {
    "relu": (0.1, 0.0, lambda x: np.where(x > 0, x, 0.1 * x)),
    "tanh": (0.0, 0.0, np.tanh),
    "elu": (0.7, 0.0, lambda x: np.where(x > 0, x, 0.7 * np.expm1(x))),
    "square": (0.0, 0.0, np.square),
    "abs": (0.0, 0.0, np.abs),
    "sqrt": (0.0, 0.0, np.sqrt),
    "linear": (1.5, -0.25, lambda x: 1.5 * x - 0.25),
    "soft_relu": (1.0, 0.0, lambda x: np.log1p(np.exp(x))),
    "hardsigmoid": (1 / 6, 0.5, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "logistic": (0.0, 0.0, sigmoid),
    "exp": (0.0, 0.0, np.exp),
    "gelu_tanh": (0.0, 0.0, lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "swish": (1.5, 0.0, lambda x: x * sigmoid(1.5 * x)),
    "log": (0.0, 0.0, np.log),
    "clip": (-0.5, 1.0, lambda x: np.clip(x, -0.5, 1.0)),
    "clip_v2": (-0.5, 1.0, lambda x: np.clip(x, -0.5, 1.0)),
    "pow": (2.0, 0.5, lambda x: 2 * x**0.5),
    "gelu_erf": (0.0, 0.0, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
    "round": (0.0, 0.0, np.rint),
    "mish": (0.0, 0.0, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "hardswish": (1 / 6, 0.5, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
}
POSITIVE = {"sqrt", "log", "pow"}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum}


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(expected).max()))


def no_reference(ran):
    assert not any("ref" in implementation for _, implementation in ran), ran


def eltwise(algorithm):
    alpha, beta, _ = ELTWISE[algorithm]
    return {"kind": "eltwise", "algorithm": algorithm, "alpha": alpha, "beta": beta}


@pytest.mark.parametrize("algorithm", ELTWISE)
@pytest.mark.parametrize("shape", [(3, 37), (1, 5, 4, 3)])
def test_eltwise(algorithm, shape, builder, rng):
    alpha, beta, reference = ELTWISE[algorithm]
    x = rng.standard_normal(shape, dtype=np.float32) * 3
    x = np.abs(x) + 0.1 if algorithm in POSITIVE else x
    y = builder.kernel(
        "eltwise", shape, {"x": builder.input(shape)}, algorithm=algorithm, alpha=alpha, beta=beta, post_ops=[]
    )
    (actual,), ran = builder.run([y], x)
    close(actual, reference(x.astype(F)))
    no_reference(ran)


@pytest.mark.parametrize("algorithm", ELTWISE)
def test_eltwise_after_convolution(algorithm, builder, rng):
    x = rng.standard_normal((1, 16, 5, 5), dtype=np.float32)
    w = rng.standard_normal((24, 16, 1, 1), dtype=np.float32) / 4
    if algorithm in POSITIVE:
        x, w = np.abs(x), np.abs(w)
    product = np.einsum("nchw,oc->nohw", x.astype(F), w[:, :, 0, 0].astype(F))
    y = convolution(builder, builder.input(x.shape), w, product.shape, [eltwise(algorithm)])
    (actual,), ran = builder.run([y], x)
    expected = ELTWISE[algorithm][2](product)
    if algorithm == "round":  # a sum in another order may fall on the other side of a half
        assert np.mean(np.abs(actual - expected) > 0.5) < 0.01
    else:
        close(actual, expected)
    assert [name.split()[0] for name, _ in ran if not name.startswith("reorder")] == ["conv"]


@pytest.mark.parametrize("algorithm", ELTWISE)
def test_eltwise_after_matmul(algorithm, builder, rng):
    a = rng.standard_normal((9, 16), dtype=np.float32)
    b = rng.standard_normal((16, 24), dtype=np.float32) / 4
    if algorithm in POSITIVE:
        a, b = np.abs(a), np.abs(b)
    product = a.astype(F) @ b
    operands = {"a": builder.input(a.shape), "b": builder.constant(b)}
    y = builder.kernel(
        "matmul", product.shape, operands, transpose_a=False, transpose_b=False, post_ops=[eltwise(algorithm)]
    )
    (actual,), ran = builder.run([y], a)
    expected = ELTWISE[algorithm][2](product)
    if algorithm == "round":
        assert np.mean(np.abs(actual - expected) > 0.5) < 0.01
    else:
        close(actual, expected)
    assert len(ran) == 1
    no_reference(ran)


def convolution(builder, data, w, shape, post_ops, **operands):
    return builder.kernel(
        "conv", shape, {"data": data, "weight": builder.constant(w), **operands}, rank=2, strides=(1, 1),
        padding_begin=(0, 0), padding_end=(0, 0), dilation=(1, 1), groups=1, post_ops=post_ops,
    )  # fmt: skip


BROADCASTS = [(2, 24, 5, 6), (1, 24, 1, 1), (24, 1, 1), (1,), (), (2, 24, 1, 1), (1, 24, 5, 6), (5, 6), (2, 1, 5, 6), (2, 1, 1, 1), (1, 1, 1, 6), (1, 24, 1, 6)]  # fmt: skip


@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
@pytest.mark.parametrize("is_constant", [True, False])
def test_binary_after_convolution(shape, is_constant, builder, rng):
    x = rng.standard_normal((2, 16, 5, 6), dtype=np.float32)
    w = rng.standard_normal((24, 16, 1, 1), dtype=np.float32) / 4
    operand = rng.standard_normal(shape, dtype=np.float32)
    product = np.einsum("nchw,oc->nohw", x.astype(F), w[:, :, 0, 0].astype(F))
    data = builder.input(x.shape)
    entry = builder.constant(operand) if is_constant else builder.input(shape)
    post_ops = [{"kind": "binary", "algorithm": "mul", "role": "post0"}, eltwise("relu")]
    y = convolution(builder, data, w, product.shape, post_ops, post0=entry)
    (actual,), ran = builder.run([y], x, *([] if is_constant else [operand]))
    close(actual, ELTWISE["relu"][2](product * operand))
    no_reference(ran)


@pytest.mark.parametrize("algorithm", BINARY)
def test_chain_after_convolution(algorithm, builder, rng):
    x, r = rng.standard_normal((1, 16, 5, 6), dtype=np.float32), rng.standard_normal((1, 24, 5, 6), dtype=np.float32)
    w = rng.standard_normal((24, 16, 1, 1), dtype=np.float32) / 4
    scale = rng.uniform(0.5, 2, (1, 24, 1, 1)).astype(np.float32)
    product = np.einsum("nchw,oc->nohw", x.astype(F), w[:, :, 0, 0].astype(F))
    post_ops = [
        eltwise("gelu_erf"),
        {"kind": "binary", "algorithm": algorithm, "role": "post1"},
        {"kind": "sum", "role": "post2"},
        eltwise("relu"),
    ]
    data, residual = builder.input(x.shape), builder.input(r.shape)
    y = convolution(builder, data, w, product.shape, post_ops, post1=builder.constant(scale), post2=residual)
    (actual,), ran = builder.run([y], x, r)
    close(actual, ELTWISE["relu"][2](BINARY[algorithm](ELTWISE["gelu_erf"][2](product), scale) + r))
    no_reference(ran)


PAIRS = [
    ((4, 5), (4, 5)), ((4, 5), (5,)), ((5,), (4, 5)), ((4, 1), (1, 5)), ((4, 5), ()), ((), (4, 5)), ((), ()),
    ((2, 3, 4, 5), (3, 1, 1)), ((2, 3, 4, 5), (2, 1, 1, 1)), ((2, 3, 4, 5), (2, 3, 1, 1)), ((2, 3, 4, 5), (1, 3, 1, 5)),
    ((2, 1, 4, 5), (2, 3, 4, 5)), ((8, 1, 6), (7, 1)), ((2, 3, 4, 5), (4, 5)), ((2, 3, 4, 1), (2, 3, 4, 5)),
    ((2, 3, 1, 5, 6), (2, 3, 4, 5, 6)),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("algorithm", BINARY)
def test_binary(pair, algorithm, builder, rng):
    a, b = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in pair)
    expected = BINARY[algorithm](a.astype(F), b)
    operands = {"a": builder.input(a.shape), "b": builder.input(b.shape), "post0": builder.input(expected.shape)}
    c = rng.standard_normal(expected.shape).astype(np.float32)
    post_ops = [eltwise("tanh"), {"kind": "binary", "algorithm": "add", "role": "post0"}]
    y = builder.kernel("binary", expected.shape, operands, algorithm=algorithm, post_ops=post_ops)
    (actual,), ran = builder.run([y], a, b, c)
    close(actual, np.tanh(expected) + c)
    no_reference(ran)


def test_binary_of_one_tensor_with_itself(builder, rng):
    x = rng.standard_normal((3, 4), dtype=np.float32)
    entry = builder.input(x.shape)
    doubled = builder.kernel("eltwise", x.shape, {"x": entry}, algorithm="linear", alpha=2.0, beta=0.0, post_ops=[])
    y = builder.kernel("binary", x.shape, {"a": doubled, "b": doubled}, algorithm="mul", post_ops=[])
    (actual,), _ = builder.run([y], x)
    close(actual, 4.0 * x.astype(F) ** 2)


@pytest.mark.parametrize("shape", [(1, 24, 5, 6), (2, 24, 5, 6)])
def test_eltwise_with_post_ops(shape, builder, rng):
    x, r = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    post_ops = [
        {"kind": "sum", "role": "post0"},
        eltwise("logistic"),
        {"kind": "binary", "algorithm": "mul", "role": "post2"},
    ]
    s = rng.standard_normal((1, 24, 1, 1), dtype=np.float32)
    operands = {"x": builder.input(shape), "post0": builder.input(shape), "post2": builder.constant(s)}
    y = builder.kernel("eltwise", shape, operands, algorithm="tanh", alpha=0.0, beta=0.0, post_ops=post_ops)
    (actual,), ran = builder.run([y], x, r)
    close(actual, sigmoid(np.tanh(x.astype(F)) + r) * s)
    no_reference(ran)


# --- one number per channel where space is a single point -------------------------------------------------------------
POINTS = [(1, 8, 1, 1), (2, 8, 1, 1), (7, 9, 1), (2, 16, 1, 1, 1)]


@pytest.mark.parametrize("shape", POINTS, ids=str)
def test_an_operand_of_one_number_per_channel_after_a_function(shape, offloading):
    """oneDNN's elementwise code would take the first of the numbers for all channels."""
    channels = (shape[1], *(1 for _ in shape[2:]))
    for ops in ("tanh multiply", "nn.relu add"):
        first, second = ops.split()
        offloading.taken(
            "dnnl.elementwise", ops, lambda b, x, y, f=first, g=second: b.op(g, b.op(f, x), y), shape, channels
        )


@pytest.mark.parametrize("batch", [1, 2])
def test_the_same_after_resampling_and_convolutions(batch, offloading):
    def scaled(b, x, y):
        return b.op("multiply", b.op("tanh", x), y)

    def resized(b, x, y):
        return scaled(b, b.op("image.resize", x, sizes=(1, 1), method="linear"), y)

    def convolved(b, x, w, y):
        return scaled(b, b.op("nn.conv2d", x, w), y)

    shape, channels = (batch, 16, 1, 1), (16, 1, 1)
    offloading.taken("dnnl.resample", "image.resize tanh multiply", resized, shape, channels)
    offloading.taken("dnnl.conv2d", "nn.conv2d tanh multiply", convolved, shape, (16, 16, 1, 1), channels)


def test_the_same_after_a_norm_of_integers(offloading):
    """The numbers that are added are computed, so that the norm is no table, nor code of our own."""
    factors = np.linspace(-3, 5, 16, dtype=np.float32).reshape(16, 1, 1)
    scale, zero = np.float32(0.02), np.int8(0)

    def norm(b, x, y):
        read = b.op("dequantize", x, np.float32(0.0025), np.int8(-128))
        stored = b.op("quantize", b.op("add", b.op("multiply", read, factors), y), scale, zero, dtype="int8")
        return b.op("nn.conv2d", b.op("dequantize", stored, scale, zero), np.ones((16, 16, 1, 1), np.float32))

    module = offloading.module(norm, TensorType((2, 16, 1, 1), "int8"), (16, 1, 1))
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", "dnnl.quantized_binary", count=1)
    offloading.right(module, exe)


def test_no_softplus_is_negative(offloading):
    """oneDNN's is, far below 0, by an error that is nothing beside 1, but of whose sign a root makes NaN."""
    x = np.linspace(-60, -10, 500, dtype=np.float32)
    exe = ky.compile(offloading.module(lambda b, x: b.op("nn.softplus", x), x.shape), backends=["dnnl"])
    assert exe.report.coverage["dnnl"]["ops"] == 1
    assert exe(x).numpy().min() >= 0
