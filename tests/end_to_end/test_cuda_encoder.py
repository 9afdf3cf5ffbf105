"""A layer of a transformer's encoder on CUDA: with attention, norms and products by CUTLASS, and by kernels of our own.

The number of words is not known when it is compiled. Both run on the emulator, and agree with the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.dims import symbol
from kernelyard.errors import DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate

pytest.importorskip("kernelyard_native_cuda", reason="kernelyard-native-cuda is not installed")
pytest.importorskip("kernelyard_cutlass", reason="kernelyard-cutlass is not installed")

from kernelyard_cutlass.backend import CutlassBackend

BATCH, WIDTH, HEADS, INNER = 2, 64, 4, 128
WORDS = symbol("n")
TOLERANCES = {"float32": None, "float16": "float16"}


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> Iterator[None]:
    """CUTLASS is active whether or not its headers are here: for the emulator nothing is compiled."""
    try:
        ky.cuda("emulator").require()
    except DeviceError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with pytest.MonkeyPatch.context() as patch:
        if CutlassBackend().probe() is not None:
            patch.setattr(CutlassBackend, "probe", lambda self: None)
        get_manager.cache_clear()
        yield
    get_manager.cache_clear()


def encoder_layer(dtype: str, is_spelled_out: bool = False) -> IRModule:
    """x (2, n, 64) and a mask (2, 1, 1, n) -> the layer's output; attention as an operator, or as models spell it out."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * shape[0] ** -0.5).astype(dtype)

    def linear(x: Var, inputs: int, outputs: int) -> Var:
        return b.op("add", b.op("matmul", x, weights(inputs, outputs)), weights(outputs))

    def normed(x: Var) -> Var:
        return b.op("nn.layer_norm", x, 1 + weights(WIDTH), weights(WIDTH), axes=(2,))

    b = FunctionBuilder()
    x, mask = b.input("x", (BATCH, WORDS, WIDTH), dtype), b.input("mask", (BATCH, 1, 1, WORDS), dtype)
    size = WIDTH // HEADS
    heads = [b.op("reshape", linear(x, WIDTH, WIDTH), shape=(BATCH, WORDS, HEADS, size)) for _ in range(3)]
    if is_spelled_out:
        attended = _spelled_out(b, *heads)
    else:
        attended = b.op("nn.attention_bias", *heads, mask)
    attended = linear(b.op("reshape", attended, shape=(BATCH, WORDS, WIDTH)), WIDTH, WIDTH)
    hidden = normed(b.op("add", attended, x))
    inner = b.op("nn.gelu", linear(hidden, WIDTH, INNER))
    result = normed(b.op("add", linear(inner, INNER, WIDTH), hidden))
    return IRModule({"main": b.function(result)})


def _spelled_out(b: FunctionBuilder, query: Var, key: Var, value: Var) -> Var:
    def flat(x: Var) -> Var:
        merged = (BATCH * HEADS, WORDS, WIDTH // HEADS)
        return b.op("reshape", b.op("permute_dims", x, axes=(0, 2, 1, 3)), shape=merged)

    scores = b.op("matmul", flat(query), b.op("permute_dims", flat(key), axes=(0, 2, 1)))
    scale = np.array((WIDTH // HEADS) ** -0.5, query.tensor_type.dtype)
    weights = b.op("nn.softmax", b.op("multiply", scores, scale), axis=2)
    result = b.op("reshape", b.op("matmul", weights, flat(value)), shape=(BATCH, HEADS, WORDS, WIDTH // HEADS))
    return b.op("permute_dims", result, axes=(0, 2, 1, 3))


def feeds(words: int, dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(words)
    hidden = random.random((BATCH, 1, 1, words)) < 0.2
    hidden[..., 0] = False
    return [random.standard_normal((BATCH, words, WIDTH)).astype(dtype), np.where(hidden, -1e4, 0).astype(dtype)]


def check(exe: ky.Executable, module: IRModule, dtype: str) -> None:
    machine = ky.VirtualMachine(exe, ky.cuda("emulator"))
    count = len(module.graph_functions()["main"].params)
    for words in (1, 7, 70):
        given = feeds(words, dtype)[:count]
        assert_allclose(machine["main"](*given), evaluate(module, given)[0], TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_an_encoder_layer_by_cutlass(dtype: str, tmp_path: Path) -> None:
    module = encoder_layer(dtype)
    exe = ky.compile(module, target="cuda", backends=["cutlass"], strict=True)
    assert_offloaded(exe, "cutlass", "cutlass.attention", at_least=1)
    assert_offloaded(exe, "cutlass", "cutlass.layer_norm", at_least=2)
    assert_offloaded(exe, "cutlass", "cutlass.matmul", at_least=6)
    assert exe.report.coverage["cutlass"]["flops_fraction"] > 0.99
    (inner,) = [region for region in exe.report.regions if "nn.gelu" in region.ops]
    assert inner.ops == ("matmul", "add", "nn.gelu")
    residuals = [region for region in exe.report.regions if region.ops == ("matmul", "add", "add")]
    assert len(residuals) == 2
    check(exe, module, dtype)
    exe.save(tmp_path / "encoder.kyar")
    check(ky.load(tmp_path / "encoder.kyar"), module, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_an_encoder_layer_by_kernels_of_our_own(dtype: str) -> None:
    module = encoder_layer(dtype)
    exe = ky.compile(module, target="cuda", backends=[], strict=True)
    assert {node.backend for node in exe.report.nodes} <= {"native-cuda", "view"}
    check(exe, module, dtype)


def test_attention_that_is_spelled_out_is_attention(tmp_path: Path) -> None:
    module = encoder_layer("float32", is_spelled_out=True)
    exe = ky.compile(module, target="cuda", backends=["cutlass"], strict=True)
    assert_offloaded(exe, "cutlass", "cutlass.attention", at_least=1)
    assert "nn.softmax" not in {node.op for node in exe.report.nodes}
    check(exe, module, "float32")
