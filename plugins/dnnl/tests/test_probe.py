"""Probe oneDNN about a group once for all groups that it answers alike."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.interpreter import run
from kernelyard.testing import assert_offloaded
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl import probe
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.primitives.integer_product import can_multiply_integers


def convolutions(scales, zeros):
    """One convolution after another, each quantized by a scale and a zero point of its own."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    codes = b.input("x", (1, 16, 9, 9), "uint8")
    for before, after, zero_before, zero_after in zip(scales, scales[1:], zeros, zeros[1:], strict=False):
        data = b.op("dequantize", codes, np.array(before, np.float32), np.array(zero_before, np.uint8))
        weight = rng.integers(-9, 9, (16, 16, 3, 3), np.int8)
        real = b.op("dequantize", weight, np.array(0.05, np.float32), np.array(0, np.int8))
        product = b.op("nn.conv2d", data, real, strides=(1, 1), padding=(1, 1, 1, 1))
        codes = b.op("quantize", product, np.array(after, np.float32), np.array(zero_after, np.uint8), dtype="uint8")
    return IRModule({"main": b.function(codes)})


@pytest.mark.skipif(not can_multiply_integers(), reason="without VNNI products of integers are declined before")
@pytest.mark.parametrize(("zeros", "is_another"), [([90, 111, 122, 133], False), ([90, 0, 122, 133], True)])
def test_layers_of_one_shape_are_one_question(zeros, is_another):
    """How large scales and zero points are is no part of it; whether there is a zero point is."""
    probe._objection.cache_clear()
    ky.compile(convolutions([0.02, 0.11, 0.23, 0.41], [100, 120, 130, 140]), backends=["dnnl"])
    asked = probe._objection.cache_info().misses
    assert asked < 3
    module = convolutions([0.03, 0.12, 0.25, 0.37], zeros)
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.quantized_conv2d", at_least=3)
    assert (probe._objection.cache_info().misses > asked) == is_another
    x = np.random.default_rng(1).integers(0, 255, (1, 16, 9, 9), np.uint8)
    (found,) = (value.numpy() for value in exe.run({"x": x}).values())
    (expected,) = run(module, {"x": x})
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


def test_a_symbol_is_not_probed_with_the_size_of_an_empty_neighbour():
    """Beside a piece of no rows, whose columns are known, another one has as many: 0 is a size that no code is for."""
    n = dims.symbol("n")
    b = FunctionBuilder()
    images = [b.op("nn.relu", b.input(name, shape)) for name, shape in (("x", (1, 8, 0, 16)), ("y", (1, 8, 6, n)))]
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("concat", *images, axis=2)))})
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.concat")
    feeds = [np.zeros((1, 8, 0, 16), np.float32), np.arange(768, dtype=np.float32).reshape(1, 8, 6, 16)]
    np.testing.assert_array_equal(exe(*feeds).numpy(), run(module, feeds)[0])


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("tanh", {}), ("nn.softmax", {"axis": 1}), ("sum", {"axes": (1,)}), ("permute_dims", {"axes": (1, 0)})],
)
def test_sizes_that_no_memory_holds_are_decided(op, attrs):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op(op, b.input("x", (dims.MAX_DIM, dims.MAX_DIM)), **attrs))})
    report = ky.explain(module, backends=["dnnl"])
    assert not report.violations
    assert {declined.code for declined in report.declined} <= {"reference-implementation", "neighbours"}


@pytest.mark.parametrize(
    ("status", "is_declined"), [("unimplemented", True), ("invalid_arguments", False), ("", False)]
)
def test_where_the_usual_size_of_a_symbol_does_not_fit_the_library_is_asked_at_one_that_does(
    status, is_declined, monkeypatch
):
    """An eltwise of bfloat16 that oneDNN lacks without AVX-512 was taken, and failed in the first run."""

    def implementations(graph, values, constants):
        dims.evaluate(graph.inputs[0].shape[0], values)  # fits for n = 5 alone
        if status:
            raise StatusError("dnnl_eltwise_forward_primitive_desc_create", enums.STATUS.index(status))
        return []

    monkeypatch.setattr(probe, "probe_implementation", implementations)
    monkeypatch.setattr(probe, "_objection", probe._objection.__wrapped__)  # nothing of it is remembered
    b = FunctionBuilder()
    x = b.input("x", (dims.broadcast(80, 16 * dims.symbol("n")), 3))
    report = ky.explain(IRModule({"main": b.function(b.op("nn.relu", x))}), backends=["dnnl"])
    declined = [each.message for each in report.declined if each.code == "reference-implementation"]
    assert bool(declined) == is_declined
    assert all("unimplemented" in message for message in declined)


def test_sizes_that_are_negative_at_the_usual_size_of_a_symbol_are_asked_for_at_others():
    n = dims.symbol("n")
    b = FunctionBuilder()
    x = b.op("nn.avg_pool2d", b.input("x", (1, n, 3, 7 - n)), pool_size=(1, 1))
    y = b.op("reshape", x, shape=(1, 3 * n * (7 - n)))
    report = ky.explain(IRModule({"main": b.function(b.op("nn.relu", y))}), backends=["dnnl"])
    assert not report.violations
