"""Splits of an image's channels, as slices."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.samples import floats
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.algebraic.slice_channels import SliceChannels
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

PASS = Sequential([SliceChannels(), DeadCodeElimination()])


def halves(b, x, axis: int, sections=(2, 4)):
    pieces = b.op("split", x, axis=axis, sections=sections)
    return b.op("concat", *(b.op("nn.relu", b.get(pieces, at)) for at in (1, 0)), axis=axis)


@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (1, 6, 2, 3, 2), (dims.symbol("n"), 6, dims.symbol("h"), 4)], ids=str)
def test_channels_of_images(check, shape):
    after = check(PASS, check.of(lambda b, x: halves(b, x, 1), shape))
    assert check.ops(after) == ["strided_slice", "nn.relu", "strided_slice", "nn.relu", "concat"]


@pytest.mark.parametrize(("shape", "axis"), [((2, 6, 3), 1), ((3, 4, 6, 2), 2), ((6, 3, 2, 2), 0)], ids=str)
def test_other_splits_stay(check, shape, axis):
    assert check.ops(check(PASS, check.of(lambda b, x: halves(b, x, axis), shape)))[0] == "split"


def test_a_split_among_convolutions_stays_with_them():
    b = FunctionBuilder()
    x = b.op("nn.conv2d", b.input("x", (1, 16, 9, 9)), floats(32, 16, 3, 3))
    pieces = b.op("split", x, axis=1, sections=(16, 16))
    first = b.op("nn.relu", b.op("nn.conv2d", b.get(pieces, 0), floats(16, 16, 3, 3, seed=1), padding=(1, 1, 1, 1)))
    second = b.op("nn.relu", b.op("add", first, b.get(pieces, 1)))
    module = IRModule(
        {"main": b.function(b.op("nn.conv2d", b.op("concat", first, second, axis=1), floats(8, 32, 1, 1)))}
    )
    exe = ky.compile(module, backends=["dnnl"])
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    given = floats(1, 16, 9, 9, seed=3)
    np.testing.assert_allclose(exe(given), ky.compile(module, backends=[])(given), rtol=1e-4, atol=1e-4)
    assert_same_meaning(module, PASS(module), [given])
