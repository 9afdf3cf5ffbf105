"""Who runs what where the user leaves it to us: regions of products are ours, those with convolutions a library's."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard import dtypes
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing.assertions import assert_offloaded
from kernelyard_native_cpu.machine import host_machine

pytestmark = pytest.mark.skipif(host_machine().vector_bits < 512, reason="measured with vectors of 512 bits alone")
RANDOM = np.random.default_rng(0)


def weight(*shape):
    return RANDOM.standard_normal(shape, dtype=np.float32) / 8


def mlp(dtype="float32"):
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 64), dtype)
    cast = weight(64, 32).astype(dtypes.to_numpy(dtype))
    return IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", x, cast)))})


def cnn():
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (1, 16, 8, 8)), weight(16, 16, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    return IRModule({"main": b.function(b.op("nn.relu", y))})


def runners(module, **how):
    return {node.backend for node in ky.explain(module, **how).nodes}


def test_products_are_generated_where_the_choice_is_ours():
    assert runners(mlp()) == {"native-cpu"}
    reasons = {declined.code for declined in ky.explain(mlp()).declined}
    assert reasons == {"generated"}


def test_a_library_that_is_named_or_required_gets_them():
    assert runners(mlp(), backends=["dnnl"]) == {"dnnl"}
    assert runners(mlp(), require={"dnnl": 1.0}) == {"dnnl"}


def test_convolutions_and_other_dtypes_stay_with_the_library():
    assert runners(cnn()) == runners(mlp("bfloat16")) == {"dnnl"}
    assert_offloaded(ky.compile(cnn()), "dnnl", pattern="dnnl.conv2d")


def classifier(rows):
    """A convolution, the mean of its places, and a layer of 1000 classes."""
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", (rows, 16, 8, 8)), weight(512, 16, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    y = b.op("mean", b.op("nn.relu", y), axes=(2, 3), keepdims=False)
    return IRModule({"main": b.function(b.op("add", b.op("matmul", y, weight(512, 1000)), weight(1000)))})


def test_few_rows_of_a_large_matrix_are_ours_even_behind_convolutions():
    for rows, expected in ((1, {"dnnl", "native-cpu"}), (64, {"dnnl"})):
        report = ky.explain(classifier(rows))
        assert {node.backend for node in report.nodes} == expected
    module, x = classifier(2), weight(2, 16, 8, 8)
    exe = ky.compile(module)
    assert_offloaded(exe, "dnnl", pattern="dnnl.conv2d")
    np.testing.assert_allclose(exe(x), ky.compile(module, backends=["dnnl"])(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "window", "runner"),
    [
        ((16, 8, 2, 2), {"strides": (2, 2)}, "dnnl"),
        ((16, 8, 3, 3), {"strides": (2, 2)}, "native-cpu"),
        ((16, 1, 4, 4), {"strides": (2, 2), "groups": 16}, "native-cpu"),
    ],
)
def test_transposed_convolutions_that_libraries_compute_as_gradients_are_ours(weights, window, runner):
    b = FunctionBuilder()
    y = b.op("nn.conv2d_transpose", b.input("x", (1, 16, 9, 9)), weight(*weights), **window)
    module = IRModule({"main": b.function(y)})
    assert runners(module) == {runner}
    assert runners(module, backends=["dnnl"]) == {"dnnl"}


def conv1d(channels, length, groups=1):
    b = FunctionBuilder()
    x = b.input("x", (1, channels, length))
    y = b.op("nn.conv1d", x, weight(channels, channels // groups, 3), padding=(1, 1), groups=groups)
    return IRModule({"main": b.function(b.op("nn.relu", y))})


def test_small_filters_along_one_axis_are_ours():
    assert runners(conv1d(32, 20)) == {"native-cpu"}
    assert runners(conv1d(32, 20), backends=["dnnl"]) == {"dnnl"}
    for other in (conv1d(192, 20), conv1d(32, 20, groups=32), conv1d(32, symbol("n"))):
        assert runners(other) == {"dnnl"}
    module, x = conv1d(32, 20), weight(1, 32, 20)
    np.testing.assert_allclose(ky.compile(module)(x), ky.compile(module, backends=["dnnl"])(x), rtol=1e-4, atol=1e-5)


def test_both_ways_agree():
    module, feeds = mlp(), {"x": weight(5, 64)}
    ours, theirs = (ky.compile(module, backends=how).run(feeds) for how in ("auto", ["dnnl"]))
    for name, tensor in ours.items():
        np.testing.assert_allclose(tensor.numpy(), theirs[name].numpy(), rtol=1e-5, atol=1e-5)
