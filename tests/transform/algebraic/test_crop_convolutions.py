"""Slices of convolutions that become less padding."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.algebraic.crop_convolutions import CropConvolutions


class Signal:
    """A convolution of one input, and what is done with it."""

    def __init__(self, *shape, padding, kernel=3, stride=1, dilation=1):
        rank, rng = len(shape) - 2, np.random.default_rng(0)
        self.b = FunctionBuilder()
        self.x = self.b.input("x", shape)
        weight = rng.standard_normal((4, shape[1], *[kernel] * rank), dtype=np.float32)
        attrs = {"strides": (stride,) * rank, "padding": padding, "dilation": (dilation,) * rank}
        self.y = self.b.op(f"nn.conv{rank}d", self.x, weight, **attrs)
        self.bias = rng.standard_normal((1, 4, *[1] * rank), dtype=np.float32)

    def cut(self, x, axis, begin, behind, stride=1):
        end = x.tensor_type.shape[axis] - behind
        return self.b.op("strided_slice", x, axes=(axis,), begin=(begin,), end=(end,), strides=(stride,))

    def check(self, *results, **sizes):
        """The calls after the pass, which mean the same: their names, with the padding of convolutions."""
        module = verify(IRModule({"main": self.b.function(*results)}))
        after = verify(CropConvolutions()(module))
        shape = [dims.evaluate(dim, sizes) for dim in self.x.tensor_type.shape]
        assert_same_meaning(module, after, [np.random.default_rng(1).standard_normal(shape, dtype=np.float32)])
        calls = [binding.value for binding in after["main"].bindings]
        return [(call.op_name, *call.attrs["padding"]) if "padding" in call.attrs else call.op_name for call in calls]


@pytest.mark.parametrize("length", [9, dims.symbol("n")])
def test_a_causal_convolution(length):
    signal = Signal(2, 3, length, padding=(4, 4), dilation=2)
    y = signal.b.op("nn.relu", signal.b.op("add", signal.y, signal.bias))
    assert signal.check(signal.cut(y, 2, 0, 4), n=11) == [("nn.conv1d", 4, 0), "add", "nn.relu"]


def test_what_goes_beyond_the_padding_stays_a_slice():
    signal = Signal(2, 3, 9, padding=(1, 2))
    assert signal.check(signal.cut(signal.y, 2, 3, 1)) == [("nn.conv1d", 0, 1), "strided_slice"]


@pytest.mark.parametrize("size", [9, 10])
@pytest.mark.parametrize(
    ("begin", "behind", "calls"), [(1, 2, [("nn.conv1d", 3, 0)]), (3, 0, [("nn.conv1d", 1, 4), "strided_slice"])]
)
def test_strides(size, begin, behind, calls):
    signal = Signal(1, 3, size, padding=(5, 4), kernel=5, stride=2)
    assert signal.check(signal.cut(signal.y, 2, begin, behind)) == calls


def test_both_axes_of_an_image():
    signal = Signal(1, 3, 6, 7, padding=(2, 1, 2, 1))
    y = signal.cut(signal.cut(signal.y, 2, 0, 2), 3, 1, 0)
    assert signal.check(y) == [("nn.conv2d", 2, 1, 0, 1), "strided_slice"]
    module = CropConvolutions()(CropConvolutions()(IRModule({"main": signal.b.function(y)})))
    assert [binding.value.attrs["padding"] for binding in module["main"].bindings] == [(2, 0, 0, 1)]


def test_what_others_read_stays():
    signal = Signal(2, 3, 9, padding=(2, 2))
    y = signal.cut(signal.y, 2, 0, 2)
    assert signal.check(y, signal.y) == [("nn.conv1d", 2, 2), "strided_slice"]


@pytest.mark.parametrize(("axis", "stride"), [(1, 1), (2, 2)])
def test_slices_of_channels_and_of_every_other_place_stay(axis, stride):
    signal = Signal(2, 3, 9, padding=(2, 2))
    y = signal.cut(signal.y, axis, 0, 2, stride)
    assert signal.check(y) == [("nn.conv1d", 2, 2), "strided_slice"]


def test_a_slice_behind_what_differs_by_place_stays():
    signal = Signal(2, 3, 9, padding=(2, 2))
    y = signal.b.op("add", signal.y, np.ones((1, 1, 11), np.float32))
    assert signal.check(signal.cut(y, 2, 0, 2)) == [("nn.conv1d", 2, 2), "add", "strided_slice"]


def test_slices_without_padding_stay():
    signal = Signal(2, 3, 9, padding=(0, 0))
    assert signal.check(signal.cut(signal.y, 2, 1, 1)) == [("nn.conv1d", 0, 0), "strided_slice"]
