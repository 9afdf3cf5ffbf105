"""Depthwise convolutions of integers by code of our own: that it runs, its numbers, and what is left to oneDNN."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import TensorType

from .conftest import needs_wide_integers

OURS = "avx512_vnni"


class Case(NamedTuple):
    """A convolution: sizes, window, and dtypes with zero points of data and result."""

    channels: int
    image: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, ...] = (1, 1, 1, 1)
    dilation: tuple[int, int] = (1, 1)
    data: tuple[str, int] = ("uint8", 7)
    result: tuple[str, int] = ("uint8", 3)
    clip: bool = False
    batch: int = 1


CASES = {
    "one block": Case(64, (9, 7)),
    "overlapping blocks": Case(100, (6, 5), data=("int8", -9)),
    "blocks of 32": Case(96, (5, 8), (5, 5), (2, 2), (2, 2, 2, 2), result=("int8", -5)),
    "no padding, several images": Case(65, (6, 6), padding=(0, 0, 0, 0), batch=3, clip=True),
    "padding on two sides": Case(
        64, (8, 8), strides=(2, 2), padding=(0, 0, 1, 1), data=("int8", 5), result=("int8", 0)
    ),
    "dilation": Case(70, (8, 9), padding=(2, 2, 2, 2), dilation=(2, 2), data=("int8", 0), clip=True),
    "a window larger than the image": Case(40, (3, 2), (7, 7), padding=(3, 3, 3, 3)),
    "a window wider than high": Case(33, (7, 30), (3, 9), (2, 3), (1, 4, 1, 4), (1, 1), ("int8", 100), ("uint8", 255)),
}


def build(b, x, case, weight=127, scale=0.004):
    rng = np.random.default_rng(case.channels)
    codes = rng.integers(-weight, weight + 1, (case.channels, 1, *case.kernel)).astype(np.int8)
    scales = rng.uniform(scale / 4, scale, case.channels).astype(np.float32)
    filters = b.op("dequantize", codes, scales, np.zeros(case.channels, np.int8), axis=0)
    real = b.op("dequantize", x, np.float32(0.02), np.array(case.data[1], case.data[0]))
    window = {"strides": case.strides, "padding": case.padding, "dilation": case.dilation}
    y = b.op("nn.conv2d", real, filters, groups=case.channels, **window)
    y = b.op("add", y, rng.standard_normal((case.channels, 1, 1)).astype(np.float32))
    if case.clip:
        y = b.op("clip", y, min=-0.5, max=2.0)
    dtype, zero = case.result
    return b.op("quantize", y, np.float32(0.03), np.array(zero, dtype), dtype=dtype)


def program(offloading, case, **given):
    shape = TensorType((case.batch, case.channels, *case.image), case.data[0])
    module = offloading.module(lambda b, x: build(b, x, case, **given), shape)
    return module, ky.compile(module, backends=["dnnl"])


def code_of(offloading, exe):
    return [name for node, name in offloading.implementations(exe) if node.startswith("conv")]


@needs_wide_integers
@pytest.mark.parametrize("name", CASES)
def test_integers_are_those_of_the_reference(name, offloading):
    module, exe = program(offloading, CASES[name])
    (code,) = code_of(offloading, exe)
    assert code.startswith("depthwise")
    assert code.endswith(OURS)
    offloading.right(module, exe)


@needs_wide_integers
def test_sums_beyond_32_bits_are_cut_off(offloading):
    """Rounding to int32 makes the smallest number of what is too large, which would be stored as 0."""
    module, exe = program(offloading, CASES["one block"], scale=1e8)
    assert code_of(offloading, exe)[0].endswith(OURS)
    feeds = offloading.feeds(module, False)
    assert set(np.unique(exe(*feeds).numpy())) <= {0, 255}
    offloading.gives(module, exe, feeds)


@needs_wide_integers
def test_threads_share_the_rows(offloading):
    case = Case(128, (40, 40), batch=2)
    module, exe = program(offloading, case)
    feeds = offloading.feeds(module, False)
    exe.threads = 1
    alone = exe(*feeds).numpy()
    exe.threads = 3
    np.testing.assert_array_equal(exe(*feeds).numpy(), alone)


@pytest.mark.parametrize(
    "case",
    [Case(32, (9, 9)), Case(16, (9, 9), (5, 5), padding=(2, 2, 2, 2))],
    ids=["few channels", "few channels of a large window"],
)
def test_narrow_images_are_left_to_oneDNN(case, offloading):
    module, exe = program(offloading, case)
    assert not [code for code in code_of(offloading, exe) if code.startswith("depthwise")]
    offloading.right(module, exe)
