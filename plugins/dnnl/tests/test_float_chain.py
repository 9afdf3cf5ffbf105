"""Elementwise groups that round to 16 bits on the way: that code of our own runs them, and its numbers."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import TensorType
from kernelyard.testing import evaluate

from .conftest import needs_wide_integers

SCALE, ZERO = np.float32(1.7e-4), np.int16(-300)
CHANNELS = np.random.default_rng(0).uniform(0.5, 1.5, 24).astype(np.float32)


def stored(b, x, scale=SCALE):
    return b.op("dequantize", b.op("quantize", x, scale, ZERO, dtype="int16"), scale, ZERO)


GROUPS = {
    "sum": lambda b, x, y: stored(b, b.op("add", x, y)),
    "difference of products": lambda b, x, y: stored(b, b.op("subtract", b.op("multiply", x, y), y)),
    "difference from a constant": lambda b, x, _: stored(b, b.op("subtract", CHANNELS, x)),
    "norm": lambda b, x, _: stored(b, b.op("nn.relu", b.op("add", b.op("multiply", x, CHANNELS), -CHANNELS))),
    "stored twice": lambda b, x, y: stored(b, b.op("multiply", stored(b, b.op("add", x, y)), CHANNELS), SCALE * 2),
    "activation": lambda b, x, _: stored(b, b.op("clip", x, min=-0.31, max=0.77)),
}


def names_of(offloading, exe):
    names = offloading.implementations(exe)
    return [name for node, name in names if node.startswith(("binary", "eltwise"))]


def compiled(offloading, name, shape):
    module = offloading.module(GROUPS[name], *[TensorType(shape, "float32")] * 2)
    return module, ky.compile(module, backends=["dnnl"])


@needs_wide_integers
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("shape", [(3, 9, 24), (7, 24), (2, 3, 50, 24)], ids=str)
def test_numbers_are_those_of_the_reference(name, shape, offloading):
    module, exe = compiled(offloading, name, shape)
    assert names_of(offloading, exe) == ["chain:avx512"]
    feeds = offloading.feeds(module)
    (expected,) = evaluate(module, feeds)
    apart = np.abs(exe(*feeds).numpy() - expected)
    assert apart.max() <= 2.01 * SCALE
    assert np.mean(apart > SCALE / 2) < 5e-3


@needs_wide_integers
def test_threads_share_the_rows(offloading):
    module, exe = compiled(offloading, "stored twice", (93, 91, 24))
    feeds = offloading.feeds(module)
    exe.threads = 1
    alone = exe(*feeds).numpy()
    exe.threads = 3
    np.testing.assert_array_equal(exe(*feeds).numpy(), alone)


@needs_wide_integers
def test_what_is_no_number_stays(offloading):
    module = offloading.module(
        lambda b, x: b.op("clip", b.op("round", b.op("multiply", x, np.float32(4))), min=-2.0, max=3.0), (64,)
    )
    exe = ky.compile(module, backends=["dnnl"])
    assert names_of(offloading, exe) == ["chain:avx512"]
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    x[5], x[6], x[7] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(exe(x).numpy(), np.clip(np.rint(4 * x), -2, 3))


def test_others_are_left_to_oneDNN(offloading):
    module = offloading.module(lambda b, x, y: stored(b, b.op("tanh", b.op("add", x, y))), (4, 90), (4, 90))
    exe = ky.compile(module, backends=["dnnl"])
    assert names_of(offloading, exe)
    assert "chain:avx512" not in names_of(offloading, exe)
