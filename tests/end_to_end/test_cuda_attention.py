"""Attention that models spell out, on CUDA: whoever is asked sees the operator, and the numbers are the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.errors import DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.testing import assert_allclose, evaluate

pytest.importorskip("kernelyard_native_cuda", reason="kernelyard-native-cuda is not installed")
pytest.importorskip("kernelyard_cudnn", reason="kernelyard-cudnn is not installed")
pytest.importorskip("kernelyard_cublas", reason="kernelyard-cublas is not installed")
pytest.importorskip("kernelyard_cutlass", reason="kernelyard-cutlass is not installed")

from kernelyard_cutlass.backend import CutlassBackend

HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE
H100 = ky.Target("cuda", arch="sm_90")


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


def weights(*shape: int) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) * shape[0] ** -0.5).astype(np.float16)


def heads_of(b: FunctionBuilder, x: Var, count: int = HEADS) -> Var:
    """(batch, length, width) -> (batch, heads, length, size)."""
    batch, length, _ = x.tensor_type.shape
    projected = b.op("matmul", x, weights(WIDTH, count * SIZE))
    return b.op("permute_dims", b.op("reshape", projected, shape=(batch, length, count, SIZE)), axes=(0, 2, 1, 3))


def attended(b: FunctionBuilder, q: Var, k: Var, v: Var, mask: Var | np.ndarray | None) -> Var:
    """As the torch frontend spells it out, with the heads brought together."""
    scores = b.op("matmul", q, b.op("permute_dims", k, axes=(0, 1, 3, 2)))
    scores = b.op("multiply", scores, np.array(SIZE**-0.5, np.float16))
    scores = scores if mask is None else b.op("add", scores, mask)
    y = b.op("permute_dims", b.op("matmul", b.op("nn.softmax", scores, axis=3), v), axes=(0, 2, 1, 3))
    batch, length = y.tensor_type.shape[:2]
    return b.op("reshape", y, shape=(batch, length, WIDTH))


def encoder(layers: int = 12) -> IRModule:
    """BERT's attentions, with a mask that is added."""
    b = FunctionBuilder()
    x, mask = b.input("x", (2, 17, WIDTH), "float16"), b.input("mask", (2, 1, 1, 17), "float16")
    for _ in range(layers):
        x = b.op("add", x, attended(b, *(heads_of(b, x) for _ in range(3)), mask))
    return IRModule({"main": b.function(x)})


def grouped() -> IRModule:
    """Llama's: heads of queries share heads of keys, and see what comes before them."""
    b = FunctionBuilder()
    x = b.input("x", (1, 20, WIDTH), "float16")
    hidden = np.triu(np.full((1, 1, 20, 20), -1e4, np.float16), 1)
    k, v = (heads_of(b, x, 1) for _ in "kv")
    k, v = (b.op("reshape", part, shape=(1, 1, 1, 20, SIZE)) for part in (k, v))
    k, v = (b.op("broadcast_to", part, shape=(1, 1, HEADS, 20, SIZE)) for part in (k, v))
    k, v = (b.op("reshape", part, shape=(1, HEADS, 20, SIZE)) for part in (k, v))
    return IRModule({"main": b.function(attended(b, heads_of(b, x), k, v, hidden))})


def decoder_step(layers: int = 12) -> IRModule:
    """GPT-2's: one token over a cache, which grows."""
    b = FunctionBuilder()
    x, grown = b.input("x", (1, 1, WIDTH), "float16"), []
    for layer in range(layers):
        cache = [b.input(f"{part}{layer}", (1, HEADS, 7, SIZE), "float16") for part in "kv"]
        k, v = (b.op("concat", past, heads_of(b, x), axis=2) for past in cache)
        x = b.op("add", x, attended(b, heads_of(b, x), k, v, None))
        grown += [k, v]
    return IRModule({"main": b.function(b.tuple(x, *grown))})


MODELS = {"encoder": (encoder, 12), "grouped": (grouped, 1), "decoder_step": (decoder_step, 12)}
WHO = [
    ("auto", "cudnn"),
    (["cudnn"], "cudnn"),
    (["cutlass"], "cutlass"),
    (["cublas"], "native-cuda"),
    ([], "native-cuda"),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("backends", "runs"), WHO, ids=str)
def test_every_attention_is_one_operator(model: str, backends: Sequence[str] | str, runs: str) -> None:
    build, count = MODELS[model]
    report = ky.explain(build(), target=H100, backends=backends)
    assert "nn.softmax" not in {node.op for node in report.nodes}
    found = [node.backend for node in report.nodes if node.op.startswith("nn.attention")]
    assert found == [runs] * count
    if runs == "native-cuda":
        kernels = [kernel for kernel in report.kernels if any(op.startswith("nn.attention") for op in kernel.ops)]
        assert sum(kernel.calls for kernel in kernels) == count


@pytest.mark.parametrize("model", MODELS)
def test_cpus_keep_products_and_softmax(model: str) -> None:
    build, count = MODELS[model]
    ops = [node.op for node in ky.explain(build(), backends=[]).nodes]
    assert ops.count("nn.softmax") == count
    assert not any(op.startswith("nn.attention") for op in ops)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("backends", "runs"), WHO, ids=str)
def test_the_numbers_are_the_reference_s(model: str, backends: Sequence[str] | str, runs: str) -> None:
    build, count = MODELS[model]
    module = build(2) if count > 1 else build()  # pyright: ignore[reportCallIssue]
    exe = ky.compile(module, target="cuda", backends=backends, strict=True)
    assert runs in {node.backend for node in exe.report.nodes if node.op.startswith("nn.attention")}
    random = np.random.default_rng(0)
    feeds = [
        random.standard_normal(param.tensor_type.shape).astype(np.float16)  # pyright: ignore[reportCallIssue, reportArgumentType]
        for param in module.graph_functions()["main"].params
    ]
    found = ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](*feeds)
    results = found if isinstance(found, tuple) else (found,)
    for actual, wanted in zip(results, evaluate(module, feeds), strict=True):
        assert_allclose(actual, wanted, "float16")
