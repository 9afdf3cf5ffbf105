"""Convolutions of one image whose results are added, and the image itself beside them."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import kernelyard as ky
from kernelyard.ir import FunctionBuilder
from kernelyard.ops.samples import floats
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.algebraic.merge_parallel_convolutions import MergeParallelConvolutions
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

PASS = Sequential([MergeParallelConvolutions(), DeadCodeElimination()])
IMAGES = {1: (2, 4, 9), 2: (2, 4, 8, 7), 3: (1, 4, 5, 6, 5)}


def convolution(b, x, size: int, seed: int = 1, dilation: int = 1, **attrs):
    """A convolution of 4 channels that keeps the image's size."""
    rank = x.tensor_type.rank - 2
    weight = floats(4, 4 // attrs.get("groups", 1), *[size] * rank, seed=seed)
    padding = (dilation * (size // 2),) * (2 * rank)
    return b.op(f"nn.conv{rank}d", x, weight, padding=padding, dilation=(dilation,) * rank, **attrs)


@pytest.mark.parametrize("rank", IMAGES)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(3, 1), (1, 3), (3, 3), (5, 3)], ids=str)
def test_windows_of_any_sizes(check, rank, groups, sizes):
    b = FunctionBuilder()
    x = b.input("x", IMAGES[rank])
    parts = [convolution(b, x, size, seed=size + at, groups=groups) for at, size in enumerate(sizes)]
    after = check(PASS, b.function(b.op("nn.relu", b.op("add", *parts))))
    assert check.ops(after) == [f"nn.conv{rank}d", "nn.relu"]
    assert after.bindings[0].value.args[1].data.shape[2:] == (max(sizes),) * rank


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("first", [True, False])
def test_biases_and_a_norm_of_the_image(check, groups, first):
    b = FunctionBuilder()
    x = b.input("x", IMAGES[2])
    product = b.op("add", convolution(b, x, 3, groups=groups), floats(4, 1, 1, seed=5))
    norm = b.op("nn.batch_norm", x, *[floats(4, seed=at, low=0.5, high=2) for at in range(4)], epsilon=1e-3)
    function = b.function(b.op("add", *((product, norm) if first else (norm, product))))
    assert check.ops(check(PASS, function)) == ["nn.conv2d", "add"]


def test_the_image_itself(check):
    after = check(PASS, check.of(lambda b, x: b.op("add", x, convolution(b, x, 3, groups=4)), IMAGES[2]))
    assert check.ops(after) == ["nn.conv2d"]


def test_a_block_of_three_branches_becomes_one_convolution(check):
    def block(b, x):
        kept = [b.op("add", convolution(b, x, size, seed=size), floats(4, 1, 1, seed=size)) for size in (3, 1)]
        scaled = b.op("add", b.op("multiply", x, floats(4, 1, 1, seed=8)), floats(1, 4, 1, 1, seed=9))
        return b.op("nn.relu", b.op("add", b.op("add", *kept), scaled))

    after = check(PASS, check.of(block, IMAGES[2]))
    assert check.ops(after) == ["nn.conv2d", "add", "nn.relu"]


def test_strides_and_padding_that_differ_by_side(check):
    b = FunctionBuilder()
    x = b.input("x", (1, 4, 8, 8))
    wide = b.op("nn.conv2d", x, floats(6, 4, 3, 3), strides=(2, 2), padding=(1, 1, 0, 0))
    narrow = b.op("nn.conv2d", x, floats(6, 4, 1, 1, seed=2), strides=(2, 2))
    after = check(PASS, b.function(b.op("add", wide, narrow)))
    assert check.ops(after) == ["nn.conv2d"]
    assert after.bindings[0].value.attrs["padding"] == (1, 1, 0, 0)


def test_a_single_tap_takes_any_dilation(check):
    def block(b, x):
        return b.op("add", convolution(b, x, 3, dilation=2), convolution(b, x, 1, seed=2, dilation=3))

    after = check(PASS, check.of(block, IMAGES[2]))
    assert after.bindings[0].value.attrs["dilation"] == (2, 2)


def _crossed(b, x):
    row = b.op("nn.conv2d", x, floats(4, 4, 1, 5), padding=(0, 2, 0, 2))
    return b.op("add", row, b.op("nn.conv2d", x, floats(4, 4, 5, 1), padding=(2, 0, 2, 0)))


def _read_twice(b, x):
    wide = convolution(b, x, 3)
    return b.op("multiply", b.op("add", wide, convolution(b, x, 1)), wide)


KEPT = {
    "more taps than both": _crossed,
    "another reader": _read_twice,
    "other images": lambda b, x: b.op("add", convolution(b, x, 3), convolution(b, b.op("nn.relu", x), 1)),
    "other groups": lambda b, x: b.op("add", convolution(b, x, 3, groups=4), convolution(b, x, 1)),
    "other dilations": lambda b, x: b.op("add", convolution(b, x, 3), convolution(b, x, 3, dilation=2)),
    "weights that are computed": lambda b, x: b.op(
        "add", b.op("nn.conv2d", x, b.input("w", (4, 4, 1, 1))), convolution(b, x, 1)
    ),
    "weights that would overflow": lambda b, x: b.op(
        "add",
        *(b.op("nn.conv2d", x, np.full((4, 4, 1, 1), 3e38, np.float32), groups=1) for _ in range(2)),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(check, name):
    function = check.of(KEPT[name], IMAGES[2])
    inputs = [np.zeros(tuple(p.tensor_type.shape), np.float32) for p in function.params] if "overflow" in name else None
    assert check.ops(check(PASS, function, inputs)).count("nn.conv2d") == 2


def test_an_image_with_a_stride_stays(check):
    b = FunctionBuilder()
    x = b.input("x", (1, 4, 1, 1))
    strided = b.op("nn.conv2d", x, floats(4, 4, 1, 1), strides=(2, 2))
    assert check.ops(check(PASS, b.function(b.op("add", strided, x)))) == ["nn.conv2d", "add"]


def test_numbers_of_16_bits_stay(check):
    def block(b, x):
        parts = [b.op("nn.conv2d", x, floats(4, 4, 1, 1, seed=at).astype(np.float16)) for at in range(2)]
        return b.op("add", *parts)

    assert check.ops(check(PASS, check.of(block, IMAGES[2], "float16"))).count("nn.conv2d") == 2


@given(st.data())
def test_any_two_windows_mean_the_same(data):
    b = FunctionBuilder()
    x = b.input("x", (1, 2, 9, 9))
    parts, strides = [], (data.draw(st.integers(1, 2)),) * 2
    for seed in range(2):
        size, dilation = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
        reach = dilation * (size - 1)
        before = data.draw(st.integers(0, reach))
        padding = (before, before, reach - before, reach - before)
        weight = floats(2, 2, size, size, seed=seed)
        parts.append(b.op("nn.conv2d", x, weight, padding=padding, dilation=(dilation,) * 2, strides=strides))
    before_ = ky.IRModule({"main": b.function(b.op("add", *parts))})
    assert_same_meaning(before_, PASS(before_), [floats(1, 2, 9, 9, seed=4)])


def test_the_pipeline_merges(check):
    def block(b, x):
        branches = [convolution(b, x, size, seed=size) for size in (3, 1)]
        norms = [
            b.op("nn.batch_norm", y, *[floats(4, seed=at, low=0.5, high=2) for at in range(4)]) for y in (*branches, x)
        ]
        return b.op("add", b.op("add", norms[0], norms[1]), norms[2])

    assert check.ops(check(get_pipeline("simplify"), check.of(block, IMAGES[2]))) == ["nn.conv2d", "add"]
