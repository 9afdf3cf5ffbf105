"""Images of few channels that get zeros behind them."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.layout.widen_channels import WidenChannels

N = dims.symbol("n")
WIDEN = WidenChannels(4, ["float32"])


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def convolution(image, filters, dtype="float32", **attributes):
    b = FunctionBuilder()
    weight = numbers(*filters).astype(dtype)
    return verify(IRModule({"main": b.function(b.op("nn.conv2d", b.input("x", image, dtype), weight, **attributes))}))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_and_filters_get_zeros(channels):
    module = convolution((N, channels, 6, 7), (5, channels, 3, 3), padding=(1, 1, 1, 1))
    after = verify(WIDEN(module))
    copy, conv = (binding.value for binding in after["main"].bindings)
    assert (copy.op_name, conv.op_name) == ("call_tir", "nn.conv2d")
    assert [arg.tensor_type.shape[1] for arg in conv.args] == [4, 4]
    (function,) = (each for each in after.functions.values() if isinstance(each, PrimFunc))
    assert len(function.blocks) == 1, "FuseOps fuses a permutation into it"
    assert_same_meaning(module, after, [numbers(2, channels, 6, 7)])


def test_filters_that_come_with_a_call():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.conv2d", b.input("x", (2, 3, 6, 6)), b.input("w", (5, 3, 3, 3))))})
    assert_same_meaning(module, verify(WIDEN(module)), [numbers(2, 3, 6, 6), numbers(5, 3, 3, 3)])


@pytest.mark.parametrize(
    "module",
    [
        convolution((2, 4, 6, 6), (5, 4, 3, 3)),
        convolution((2, 8, 6, 6), (8, 1, 3, 3), groups=8),
        convolution((2, 3, 6, 6), (5, 3, 3, 3), "float16"),
    ],
    ids=["enough channels", "by channel", "another dtype"],
)
def test_others_stay(module):
    assert WIDEN(module) is module
