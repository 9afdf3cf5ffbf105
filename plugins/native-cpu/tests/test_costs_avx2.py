"""Who runs what on CPUs with AVX2: convolutions in groups go where there is code for them, others where they take less."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import evaluate
from kernelyard_native_cpu.machine import host_machine

pytestmark = pytest.mark.skipif(host_machine().vector_bits < 256, reason="the host runs no code for AVX2")
AVX2 = ky.Target("cpu", mcpu="x86-64-v3")
RANDOM = np.random.default_rng(0)


def weight(*shape):
    return RANDOM.standard_normal(shape, dtype=np.float32) / 8


def convolution(op, data, weights, **attrs):
    b = FunctionBuilder()
    return IRModule({"main": b.function(b.op("nn.relu", b.op(op, b.input("x", data), weight(*weights), **attrs)))})


OURS = {
    "a sequence": convolution("nn.conv1d", (1, 32, 90), (32, 1, 9), groups=32),
    "several filters for each channel": convolution("nn.conv1d", (1, 16, 90), (32, 1, 5), groups=16),
    "filters that fill no vectors": convolution("nn.conv1d", (1, 24, 90), (24, 12, 5), groups=2),
    "an image one element wide": convolution("nn.conv2d", (1, 32, 76, 1), (32, 1, 20, 1), groups=32),
    "a volume": convolution("nn.conv3d", (1, 16, 4, 9, 9), (16, 1, 3, 3, 3), groups=16),
    "groups of few channels": convolution("nn.conv2d", (1, 32, 14, 14), (32, 4, 3, 3), groups=8),
    "depthwise, reordered at both borders": convolution("nn.conv2d", (1, 32, 28, 28), (32, 1, 3, 3), groups=32),
    "a transposed convolution": convolution("nn.conv1d_transpose", (1, 16, 50), (16, 4, 8), groups=4, strides=(4,)),
}
THEIRS = {
    "groups of many channels": convolution("nn.conv2d", (1, 64, 14, 14), (64, 32, 3, 3), groups=2),
    "one group": convolution("nn.conv1d", (1, 32, 90), (32, 32, 9)),
}


def runners(module):
    """Who gets the convolutions, in their order."""
    nodes = ky.explain(module, target=AVX2).nodes
    return [node.backend for node in nodes if node.op.startswith("nn.conv")]


@pytest.mark.parametrize("name", OURS)
def test_convolutions_of_ours(name):
    module = OURS[name]
    assert runners(module) == ["native-cpu"]
    (data,) = module.entry_functions()["main"].params
    x = weight(*data.tensor_type.shape)
    exe, reference = ky.compile(module, target=AVX2), ky.compile(module, backends=["dnnl"], target=AVX2)
    np.testing.assert_allclose(exe(x), reference(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", THEIRS)
def test_convolutions_of_libraries(name):
    assert runners(THEIRS[name]) == ["dnnl"]


def test_a_convolution_between_those_of_a_library_is_ours_alone():
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("nn.conv2d", b.input("x", (1, 64, 28, 28)), weight(128, 64, 3, 3), padding=(1, 1, 1, 1)))
    y = b.op("nn.conv2d", y, weight(128, 4, 3, 3), groups=32, padding=(1, 1, 1, 1))
    y = b.op("nn.conv2d", b.op("nn.relu", y), weight(64, 128, 3, 3), padding=(1, 1, 1, 1))
    assert runners(IRModule({"main": b.function(y)})) == ["dnnl", "native-cpu", "dnnl"]


def test_convolutions_of_one_element_go_with_one_in_groups():
    """All three took 0.83 of the time that reorders around the middle one left to a library."""
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("nn.conv2d", b.input("x", (1, 64, 28, 28)), weight(128, 64, 1, 1)))
    y = b.op("nn.conv2d", y, weight(128, 4, 3, 3), groups=32, padding=(1, 1, 1, 1))
    y = b.op("nn.conv2d", b.op("nn.relu", y), weight(64, 128, 1, 1))
    assert runners(IRModule({"main": b.function(y)})) == ["native-cpu"] * 3


def quantized_images(has_integers: bool) -> IRModule:
    """Two convolutions, which quantizers put conversions around, or not."""
    b = FunctionBuilder()

    def stored(y):
        if not has_integers:
            return y
        parameters = np.float32(0.05), np.uint8(120)
        return b.op("dequantize", b.op("quantize", y, *parameters, dtype="uint8"), *parameters)

    def filters(*shape):
        codes = RANDOM.integers(-127, 128, shape).astype(np.int8)
        scales, zeros = np.full(shape[0], 0.00137, np.float32), np.zeros(shape[0], np.int8)
        return b.op("dequantize", codes, scales, zeros, axis=0) if has_integers else weight(*shape)

    y = b.op("nn.relu", b.op("nn.conv2d", stored(b.input("x", (1, 64, 28, 28))), filters(128, 64, 1, 1)))
    y = b.op("nn.conv2d", stored(y), filters(64, 128, 1, 1))
    return IRModule({"main": b.function(stored(y))})


def test_quantized_images_are_ours_where_oneDNN_has_no_products_of_integers(monkeypatch):
    from kernelyard_dnnl import costs, integer_checks

    for module, name in ((costs, "has_wide_vectors"), (costs, "can_multiply_integers")):
        monkeypatch.setattr(module, name, lambda: False)
    monkeypatch.setattr(integer_checks, "can_multiply_integers", lambda: False)
    module = quantized_images(has_integers=True)
    assert runners(module) == ["native-cpu", "native-cpu"]
    assert runners(quantized_images(has_integers=False)) == ["dnnl", "dnnl"]
    exe = ky.compile(module, target=AVX2)
    assert any("conv2d" in str(kernel.ops) and "quantize" in str(kernel.ops) for kernel in exe.report.kernels)
    x = RANDOM.standard_normal((1, 64, 28, 28), dtype=np.float32)
    (expected,) = evaluate(module, [x])
    apart = np.abs(exe(x).numpy() - expected) / 0.05
    assert apart.max() < 1.01
    assert (apart > 0.01).mean() < 1e-3


@pytest.mark.parametrize("kept", ["has_wide_vectors", "can_multiply_integers"])
def test_quantized_images_are_shared_as_others_with_other_instructions(kept, monkeypatch):
    from kernelyard_dnnl import costs, integer_checks

    for name in ("has_wide_vectors", "can_multiply_integers"):
        monkeypatch.setattr(costs, name, lambda name=name: name == kept)
    monkeypatch.setattr(integer_checks, "can_multiply_integers", lambda: False)
    assert runners(quantized_images(has_integers=True)) == ["dnnl", "dnnl"]
