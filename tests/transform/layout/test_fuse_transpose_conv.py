"""Convolutions and pools that read and write channels-last tensors as they lie."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.ir import Call, Constant, FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.layout.convert_layout import to_first, to_last
from kernelyard.transform.layout.fuse_transpose_conv import FuseTransposeConv
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.pipelines import channels_last
from kernelyard.transform.simplify.canonicalize import Canonicalize
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination

N = dims.symbol("n")
FUSE = Sequential([FuseTransposeConv(), Canonicalize(), DeadCodeElimination()], "fuse")
POOL = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(dtype)


def between_permutations(op, shape, *more, **attributes):
    b = FunctionBuilder()
    x = b.input("x", shape)
    result = b.op(op, b.op("permute_dims", x, axes=to_first(len(shape))), *more, **attributes)
    return verify(IRModule({"main": b.function(b.op("permute_dims", result, axes=to_last(len(shape))))}))


def ops_of(module):
    return [binding.value.op_name for binding in module["main"].bindings if isinstance(binding.value, Call)]


CASES = {
    "conv2d": ("nn.conv2d", (2, 7, 6, 4), (5, 4, 3, 3), {"padding": (1, 0, 1, 2)}),
    "strided": ("nn.conv2d", (2, 7, 6, 4), (5, 4, 3, 3), {"strides": (2, 1), "dilation": (1, 2)}),
    "groups": ("nn.conv2d", (2, 7, 6, 4), (6, 2, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "depthwise": ("nn.conv2d", (2, 7, 6, 4), (4, 1, 3, 3), {"groups": 4}),
    "conv1d": ("nn.conv1d", (2, 7, 4), (5, 4, 3), {"padding": (1, 1)}),
    "conv3d": ("nn.conv3d", (1, 3, 4, 5, 2), (3, 2, 2, 2, 2), {}),
    "max_pool2d": ("nn.max_pool2d", (2, 7, 6, 4), None, POOL),
    "avg_pool2d": ("nn.avg_pool2d", (2, 7, 6, 4), None, POOL),
}


@pytest.mark.parametrize("name", CASES)
def test_no_copy_is_permuted(name):
    op, shape, filters, attributes = CASES[name]
    module = between_permutations(op, shape, *([numbers(*filters)] if filters else []), **attributes)
    after = verify(FUSE(module))
    assert ops_of(after) == ["call_tir"]
    assert_same_meaning(module, after, [numbers(*shape)])


def test_points_are_counted_and_filters_lie_as_they_are_read():
    module = FUSE(between_permutations("nn.conv2d", (2, 7, 6, 4), numbers(5, 4, 3, 3)))
    (function,) = (each for each in module.functions.values() if isinstance(each, PrimFunc))
    (conv,) = function.blocks
    assert [axis.extent for axis in conv.spatial_axes] == [2, 5, 4, 5]
    assert conv.writes_spatial_axes
    (call,) = (binding.value for binding in module["main"].bindings)
    (filters,) = (arg for arg in call.args if isinstance(arg, Constant))
    assert filters.data.shape == (5, 3, 3, 4)


def test_filters_that_come_with_a_call_are_permuted_then():
    b = FunctionBuilder()
    x, w = b.input("x", (N, 6, 6, 4)), b.input("w", (5, 4, 3, 3))
    result = b.op("nn.conv2d", b.op("permute_dims", x, axes=to_first(4)), w)
    module = verify(IRModule({"main": b.function(b.op("permute_dims", result, axes=to_last(4)))}))
    after = verify(FUSE(module))
    assert ops_of(after) == ["permute_dims", "call_tir"]
    assert_same_meaning(module, after, [numbers(2, 6, 6, 4), numbers(5, 4, 3, 3)])


def test_what_is_channels_first_stays():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.conv2d", b.input("x", (2, 4, 6, 6)), numbers(5, 4, 3, 3)))})
    assert FuseTransposeConv()(module) is module


def test_a_network_is_converted_once_in_and_once_out():
    b = FunctionBuilder()
    x = b.input("x", (2, 4, 9, 9), "float16")
    y = b.op("nn.relu", b.op("nn.conv2d", x, numbers(8, 4, 3, 3, dtype="float16"), padding=(1, 1, 1, 1)))
    y = b.op("nn.max_pool2d", y, **POOL)
    y = b.op("add", y, b.op("nn.conv2d", y, numbers(8, 8, 3, 3, dtype="float16"), padding=(1, 1, 1, 1)))
    module = verify(IRModule({"main": b.function(y)}))
    after = verify(channels_last(["float16"])(module))
    assert ops_of(after) == ["permute_dims", "call_tir", "nn.relu", "call_tir", "call_tir", "add", "permute_dims"]
    assert_same_meaning(module, after, [numbers(2, 4, 9, 9, dtype="float16")])
    assert channels_last(["bfloat16"])(module) is module
