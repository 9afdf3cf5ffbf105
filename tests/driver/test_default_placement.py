"""Keep the default placement, to the byte, whatever is installed beside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.testing import assert_allclose, assert_declined, evaluate

RANDOM = np.random.default_rng(0)
OPS = ("matmul", "add", "nn.relu", "nn.softmax", "nn.conv2d", "nn.max_pool2d", "reshape", "permute_dims", "tanh")


def weight(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32) / 8


def network() -> IRModule:
    """Convolutions large enough for oneDNN, places as a sequence; a product and a softmax, and a layer of few rows."""
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 3, 16, 16))
    y = b.op("nn.relu", b.op("nn.conv2d", x, weight(64, 3, 3, 3), padding=(1, 1, 1, 1)))
    for _ in range(2):
        y = b.op("nn.relu", b.op("nn.conv2d", y, weight(64, 64, 3, 3), padding=(1, 1, 1, 1)))
    y = b.op("nn.relu", b.op("nn.conv2d", y, weight(32, 64, 4, 4), strides=(4, 4)))
    y = b.op("permute_dims", b.op("reshape", y, shape=(symbol("n"), 32, 16)), axes=(0, 2, 1))
    y = b.op("nn.softmax", b.op("add", b.op("matmul", y, weight(32, 32)), weight(32)), axis=2)
    y = b.op("reshape", b.op("tanh", y), shape=(symbol("n"), 512))
    return IRModule({"main": b.function(b.op("matmul", y, weight(512, 10)))})


def strangers() -> Sequence[InterpretedBackend]:
    """A library of products and what follows them, and a compiler of regions of anything; both right, no costs."""
    product = is_op("matmul")(wildcard(), wildcard())
    gemm = FusionPattern("gemm.linear", product.optional(lambda y: is_op("add")(y, wildcard())))
    return [InterpretedBackend("gemm", patterns=[gemm]), InterpretedBackend("regions", OPS)]


@pytest.fixture
def bytes_of(tmp_path):
    """Return a function that gives the artifact of a compile, without the report that names what was declined."""

    def saved(exe: ky.Executable) -> bytes:
        exe.report = ky.Report("cpu")
        exe.save(tmp_path / "model.kyar")
        return (tmp_path / "model.kyar").read_bytes()

    return saved


@pytest.mark.parametrize("priority", [-5, 10, 1_000_000])
def test_the_default_placement_stays_to_the_byte(install, bytes_of, priority: int) -> None:
    module = network()
    before = ky.compile(module)
    placed = [(node.op, node.backend, node.function) for node in before.report.nodes]
    assert {"dnnl", "native-cpu"} <= {backend for _, backend, _ in placed}
    expected = bytes_of(before)
    for stranger in strangers():
        install(stranger, priority=priority)
    after = ky.compile(module)
    assert [(node.op, node.backend, node.function) for node in after.report.nodes] == placed
    assert_declined(after.report, "gemm", "unmeasured")
    assert_declined(after.report, "regions", "unmeasured")
    assert bytes_of(after) == expected


def test_a_stranger_that_is_named_gets_what_it_accepts(install) -> None:
    for stranger in strangers():
        install(stranger, priority=1_000_000)
    module, x = network(), weight(2, 3, 16, 16)
    exe = ky.compile(module, backends=["gemm", "regions"])
    owners = {node.op: node.backend for node in exe.report.nodes}
    assert owners["matmul"] == "gemm"
    assert owners["nn.softmax"] == owners["nn.conv2d"] == "regions"
    assert_allclose(exe(x), evaluate(module, [x])[0])
