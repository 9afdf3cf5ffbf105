"""Arithmetic on quantized tensors by code of our own: that it runs, its numbers, and what is left to oneDNN."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import TensorType

from .conftest import needs_wide_integers

# label -> (operator, both shapes, both scales, both zero points)
PAIRS = {
    "sum": ("add", [(2, 24, 9, 7)] * 2, (0.021, 0.033), (3, 90)),
    "sum of few elements": ("add", [(3, 5)] * 2, (0.021, 0.033), (3, 90)),
    "difference": ("subtract", [(4, 300)] * 2, (0.021, 0.033), (3, 20)),
    "product": ("multiply", [(1, 40, 5, 5)] * 2, (0.0173, 0.0041), (3, 0)),
    "product with a number for each row": ("multiply", [(6, 40, 30), (6, 1, 30)], (0.0173, 0.0041), (0, 9)),
    "sum with the same row": ("add", [(4, 6, 30), (30,)], (0.021, 0.033), (3, 90)),
}
ACTIVATIONS = {
    "none": lambda b, x: x,
    "relu": lambda b, x: b.op("nn.relu", x),
    "clip": lambda b, x: b.op("clip", x, min=-0.7, max=1.1),
    "halved": lambda b, x: b.op("multiply", x, np.float32(0.5)),
}


def decoded(b, x, scale, zero):
    return b.op("dequantize", x, np.float32(scale), np.array(zero, x.type.dtype))


def encoded(b, x, scale, zero, dtype):
    return b.op("quantize", x, np.float32(scale), np.array(zero, dtype), dtype=dtype)


def names_of(offloading, exe):
    return [name for node, name in offloading.implementations(exe) if node.startswith("binary")]


def pair(offloading, name, activation="none", dtypes=("uint8", "uint8", "uint8")):
    op, shapes, scales, zeros = PAIRS[name]

    def build(b, x, y):
        both = [decoded(b, each, *numbers) for each, *numbers in zip((x, y), scales, zeros, strict=True)]
        return encoded(b, ACTIVATIONS[activation](b, b.op(op, *both)), 0.0512, 7, dtypes[2])

    types = [TensorType(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False)]
    module = offloading.module(build, *types)
    return module, ky.compile(module, backends=["dnnl"])


@needs_wide_integers
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtypes", [("uint8", "uint8", "uint8"), ("uint8", "int8", "int8"), ("int8", "uint8", "uint8")])
def test_integers_are_those_of_the_reference(name, activation, dtypes, offloading):
    module, exe = pair(offloading, name, activation, dtypes)
    (code,) = names_of(offloading, exe)
    assert code == f"{'product' if PAIRS[name][0] == 'multiply' else 'sum'}:avx512"
    offloading.right(module, exe)


@needs_wide_integers
@pytest.mark.parametrize("shape", [(2, 8, 9, 7), (1, 30, 5, 5), (1, 70, 40, 1)], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_norms_are_lines_of_each_channel(shape, activation, dtype, offloading):
    """Beside another reader of a convolution, which stores its channels innermost."""
    rng, channels = np.random.default_rng(0), shape[1]
    factors, offsets = (rng.uniform(0.5, 1.5, (1, channels, 1, 1)).astype(np.float32) for _ in range(2))
    weight = np.eye(channels, dtype=np.int8).reshape(channels, channels, 1, 1)

    def build(b, x):
        real = b.op("dequantize", weight, np.float32(1), np.int8(0))
        x = encoded(b, b.op("nn.conv2d", decoded(b, x, 0.0213, 5), real), 0.0213, 5, "uint8")
        y = b.op("add", b.op("multiply", decoded(b, x, 0.0213, 5), factors), offsets)
        y = encoded(b, ACTIVATIONS[activation](b, y), 0.03717, 9, dtype)
        return encoded(b, b.op("add", decoded(b, x, 0.0213, 5), decoded(b, y, 0.03717, 9)), 0.05131, 2, "uint8")

    module = offloading.module(build, TensorType(shape, "uint8"))
    exe = ky.compile(module, backends=["dnnl"])
    assert names_of(offloading, exe) == ["lines:avx512", "sum:avx512"]
    offloading.right(module, exe)


@needs_wide_integers
def test_norms_of_columns(offloading):
    factors = np.linspace(0.5, 1.5, 12, dtype=np.float32)
    module = offloading.module(
        lambda b, x: encoded(b, b.op("multiply", decoded(b, x, 0.021, 5), factors), 0.0371, 9, "int8"),
        TensorType((50, 12), "uint8"),
    )
    exe = ky.compile(module, backends=["dnnl"])
    assert names_of(offloading, exe) == ["lines:avx512"]
    offloading.right(module, exe)


@needs_wide_integers
def test_ties_go_to_the_even_integer_before_the_zero_point(offloading):
    def build(b, x, y):
        return encoded(b, b.op("add", decoded(b, x, 1, 0), decoded(b, y, 1, 0)), 2, 1, "uint8")

    module = offloading.module(build, *[TensorType((256,), "uint8")] * 2)
    exe = ky.compile(module, backends=["dnnl"])
    assert names_of(offloading, exe) == ["sum:avx512"]
    x, y = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
    np.testing.assert_array_equal(exe(x, y).numpy(), np.rint(x / 2).astype(np.uint8) + 1)


@needs_wide_integers
def test_sums_far_beyond_what_is_stored_are_cut_off(offloading):
    def build(b, x, y):
        return encoded(b, b.op("subtract", decoded(b, x, 1e9, 0), decoded(b, y, 1e9, 0)), 1e-3, 3, "uint8")

    module = offloading.module(build, *[TensorType((64,), "uint8")] * 2)
    exe = ky.compile(module, backends=["dnnl"])
    x, y = np.full(64, 200, np.uint8), np.full(64, 100, np.uint8)
    assert set(exe(x, y).numpy()) == {255}
    assert set(exe(y, x).numpy()) == {0}


@needs_wide_integers
def test_threads_share_the_rows(offloading):
    def build(b, x, y):
        return encoded(b, b.op("add", decoded(b, x, 0.02, 3), decoded(b, y, 0.03, 4)), 0.05, 5, "uint8")

    module = offloading.module(build, *[TensorType((1, 64, 57, 51), "uint8")] * 2)
    exe = ky.compile(module, backends=["dnnl"])
    feeds = offloading.feeds(module)
    exe.threads = 1
    alone = exe(*feeds).numpy()
    exe.threads = 3
    np.testing.assert_array_equal(exe(*feeds).numpy(), alone)


def test_other_activations_are_left_to_oneDNN(offloading):
    def build(b, x, y):
        total = b.op("tanh", b.op("add", decoded(b, x, 0.02, 3), decoded(b, y, 0.03, 4)))
        return encoded(b, total, 0.0078, 128, "uint8")

    module = offloading.module(build, *[TensorType((4, 90), "uint8")] * 2)
    exe = ky.compile(module, backends=["dnnl"])
    assert names_of(offloading, exe)
    assert not [name for name in names_of(offloading, exe) if name.endswith(":avx512")]
    offloading.right(module, exe)
