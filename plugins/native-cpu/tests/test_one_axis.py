"""Who computes convolutions along one axis: gates over the channels of an image, strides over large filters."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard_native_cpu.machine import host_machine

pytestmark = pytest.mark.skipif(host_machine().vector_bits < 512, reason="measured with vectors of 512 bits alone")
CHANNELS, SIZE = 32, 24
RANDOM = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32) / 8


def gated(b: FunctionBuilder, x: Var) -> Var:
    """Scale channels by a convolution along their means."""
    axes = tuple(range(2, x.tensor_type.rank))
    means = b.op("reshape", b.op("mean", x, axes=axes), shape=(1, 1, CHANNELS))
    gates = b.op("sigmoid", b.op("nn.conv1d", means, weight(1, 1, 3), padding=(1, 1)))
    return b.op("multiply", x, b.op("reshape", gates, shape=(1, CHANNELS, *(1 for _ in axes))))


def network(rank: int) -> IRModule:
    """Return a gate between two convolutions along one axis, or of images."""
    b = FunctionBuilder()
    x, window, pads = b.input("x", (1, CHANNELS, *(SIZE,) * rank)), (3,) * rank, (1, 1) * rank
    y = b.op("nn.relu", b.op(f"nn.conv{rank}d", x, weight(CHANNELS, CHANNELS, *window), padding=pads))
    return IRModule({"main": b.function(b.op(f"nn.conv{rank}d", gated(b, y), weight(CHANNELS, CHANNELS, *window)))})


@pytest.mark.parametrize(("rank", "runner"), [(2, "dnnl"), (1, "native-cpu")])
def test_gates_are_computed_by_those_who_make_the_image(rank: int, runner: str):
    module, x = network(rank), weight(1, CHANNELS, *(SIZE,) * rank)
    assert {node.backend for node in ky.explain(module).nodes} - {"view"} == {runner}
    (actual,), (expected,) = (ky.compile(module, backends=names).run({"x": x}).values() for names in ("auto", ["dnnl"]))
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("places", "runner"), [(1200, "dnnl"), (600, "native-cpu")])
def test_large_filters_are_ours_where_they_are_read_for_few_places(places: int, runner: str):
    b = FunctionBuilder()
    y = b.op("nn.conv1d", b.input("x", (1, 320, places)), weight(320, 320, 3), strides=(2,), padding=(1, 1))
    module, x = IRModule({"main": b.function(y)}), weight(1, 320, places)
    assert {node.backend for node in ky.explain(module).nodes} == {runner}
    (actual,), (expected,) = (ky.compile(module, backends=names).run({"x": x}).values() for names in ("auto", []))
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)
