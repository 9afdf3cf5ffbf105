"""Parts of networks from end to end: compiled with our kernels alone, run on the emulator, against the reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims, dtypes
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import evaluate
from kernelyard.testing.strategies import RandomProgram, modules
from kernelyard_native_cuda.runtime import NativeCudaModule

N = dims.symbol("n")
RANDOM = np.random.default_rng(5)
DTYPES = ["float32", "float16", "bfloat16"]
# What a result may be off by, of its largest number: some roundings of the dtype.
OFF = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def numbers(*shape: int, dtype: str, scale: float = 1.0) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * scale).astype(dtypes.to_numpy(dtype))


def check(build: Callable[[FunctionBuilder], Any], feeds: Sequence[Sequence[np.ndarray]], dtype: str) -> str:
    """Each set of feeds gives what the reference gives, all by our kernels; the kernels' text."""
    b = FunctionBuilder()
    module = IRModule({"main": b.function(build(b))})
    exe = ky.compile(module, target=ky.Target("cuda"), backends=[])
    assert {each.kind for each in exe.modules} == {"native-cuda"}
    vm = ky.VirtualMachine(exe, ky.cuda("emulator"))
    for feed in feeds:
        found = vm["main"](*feed)
        for actual, wanted in zip(found if isinstance(found, tuple) else [found], evaluate(module, feed), strict=True):
            wide = np.asarray(wanted).astype(np.float64)
            given = actual.numpy().astype(np.float64)
            assert given.shape == wide.shape
            np.testing.assert_allclose(given, wide, rtol=0, atol=OFF[dtype] * max(np.abs(wide).max(), 1.0))
    (compiled,) = exe.modules
    assert isinstance(compiled, NativeCudaModule)
    return compiled.image.source.split("// --- generated")[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_gathered_rows(emulator, dtype):
    """Whole rows of tables, that ids name from the end, too, stay in registers, read 16 bytes at once."""
    words, kinds, scale = numbers(50, 96, dtype=dtype), numbers(3, 96, dtype=dtype), numbers(96, dtype=dtype)

    def build(b: FunctionBuilder) -> Any:
        ids, kind = b.input("ids", (N, 7), "int64"), b.input("kind", (N, 7), "int64")
        rows = b.op("add", b.op("take", words, ids, axis=0), b.op("take", kinds, kind, axis=0))
        return b.op("nn.layer_norm", rows, scale, scale, axes=(2,), epsilon=1e-5)

    feeds = [[RANDOM.integers(-50, 50, (2, 7)), RANDOM.integers(-3, 3, (2, 7))]]
    assert "piece" in check(build, feeds, dtype)


# --- rows -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 31, 100, 768, 5000])
def test_softmax(emulator, dtype, width):
    def build(b: FunctionBuilder) -> Any:
        return b.op("nn.softmax", b.input("x", (N, width), dtype), axis=1)

    check(build, [[numbers(rows, width, dtype=dtype, scale=4)] for rows in (1, 7)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_rows_of_any_length(emulator, dtype):
    def build(b: FunctionBuilder) -> Any:
        return b.op("nn.softmax", b.input("x", (3, 2, N), dtype), axis=2)

    text = check(build, [[numbers(3, 2, width, dtype=dtype)] for width in (1, 33, 1000)], dtype)
    assert text.count("// general_reduction:") == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["nn.layer_norm", "nn.rms_norm"])
@pytest.mark.parametrize("width", [24, 96, 768, 1001])
def test_norms(emulator, dtype, name, width):
    def build(b: FunctionBuilder) -> Any:
        x = b.input("x", (N, 3, width), dtype)
        parameters = [numbers(width, dtype=dtype) for _ in range(2 if name == "nn.layer_norm" else 1)]
        return b.op(name, b.op("add", x, x), *parameters, axes=(2,), epsilon=1e-5)

    check(build, [[numbers(rows, 3, width, dtype=dtype)] for rows in (1, 4)], dtype)


# --- a step of GPT-2 --------------------------------------------------------------------------------------------------
WIDTH, HEADS = 64, 4
SIZE = WIDTH // HEADS


def linear(b: FunctionBuilder, x: Any, out: int, dtype: str) -> Any:
    weight = numbers(x.type.shape[-1], out, dtype=dtype, scale=0.1)
    return b.op("add", b.op("matmul", x, weight), numbers(out, dtype=dtype, scale=0.1))


def norm(b: FunctionBuilder, x: Any, dtype: str) -> Any:
    return b.op("nn.layer_norm", x, numbers(WIDTH, dtype=dtype), numbers(WIDTH, dtype=dtype), axes=(2,), epsilon=1e-5)


def heads(b: FunctionBuilder, x: Any, rows: Any) -> Any:
    return b.op("reshape", x, shape=(1, rows, HEADS, SIZE))


def gpt2_block(b: FunctionBuilder, x: Any, past: tuple[Any, Any], rows: Any, dtype: str) -> tuple[Any, Any, Any]:
    normed = norm(b, x, dtype)
    q, k, v = (heads(b, linear(b, normed, WIDTH, dtype), rows) for _ in "qkv")
    keys, values = b.op("concat", past[0], k, axis=1), b.op("concat", past[1], v, axis=1)
    found = b.op("nn.attention", q, keys, values, causal="bottom_right")
    x = b.op("add", x, linear(b, b.op("reshape", found, shape=(1, rows, WIDTH)), WIDTH, dtype))
    hidden = b.op("nn.gelu", linear(b, norm(b, x, dtype), 4 * WIDTH, dtype))
    return b.op("add", x, linear(b, hidden, WIDTH, dtype)), keys, values


def gpt2(rows: Any, dtype: str, layers: int = 2) -> Callable[[FunctionBuilder], Any]:
    """Layers over `rows` new tokens, given the keys and values of n tokens before; and the logits of 50."""

    def build(b: FunctionBuilder) -> Any:
        x = b.input("x", (1, rows, WIDTH), dtype)
        kept: list[Any] = []
        for layer in range(layers):
            past = tuple(b.input(f"{name}{layer}", (1, N, HEADS, SIZE), dtype) for name in ("keys", "values"))
            x, keys, values = gpt2_block(b, x, (past[0], past[1]), rows, dtype)
            kept += [keys, values]
        logits = b.op("matmul", norm(b, x, dtype), numbers(WIDTH, 50, dtype=dtype, scale=0.1))
        return b.tuple(logits, *kept)

    return build


def feeds_of_gpt2(rows: int, past: int, dtype: str, layers: int = 2) -> list[np.ndarray]:
    caches = [numbers(1, past, HEADS, SIZE, dtype=dtype) for _ in range(2 * layers)]
    return [numbers(1, rows, WIDTH, dtype=dtype), *caches]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_of_decoding(emulator, dtype):
    """One token, after any number of tokens."""
    text = check(gpt2(1, dtype), [feeds_of_gpt2(1, past, dtype) for past in (1, 7, 64, 130)], dtype)
    assert "// gemv:" in text


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_prompt(emulator, dtype):
    """Any number of tokens, after any number of tokens."""
    rows = dims.symbol("rows")
    feeds = [feeds_of_gpt2(new, past, dtype) for new, past in ((20, 1), (70, 64))]
    text = check(gpt2(rows, dtype), feeds, dtype)
    assert ("// attention:" in text) == (dtype == "float16")
    assert ("on tensor cores" in text) == (dtype == "float16")


# --- images -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_convolutions(emulator, dtype):
    """Two convolutions with their norms folded, around which the input goes by one of its own."""

    def convolved(b: FunctionBuilder, x: Any, filters: int, kernel: int, stride: int) -> Any:
        weight = numbers(filters, x.type.shape[1], kernel, kernel, dtype=dtype, scale=0.2)
        sizes = {"strides": (stride, stride), "padding": (kernel // 2,) * 4}
        product = b.op("nn.conv2d", x, weight, **sizes)
        return b.op("add", product, numbers(1, filters, 1, 1, dtype=dtype))

    def build(b: FunctionBuilder) -> Any:
        x = b.input("x", (N, 8, 14, 14), dtype)
        inner = b.op("nn.relu", convolved(b, x, 16, 3, 2))
        result = b.op("nn.relu", b.op("add", convolved(b, inner, 16, 3, 1), convolved(b, x, 16, 1, 2)))
        pooled = b.op("mean", result, axes=(2, 3))
        return b.op("nn.softmax", b.op("matmul", pooled, numbers(16, 10, dtype=dtype)), axis=1)

    text = check(build, [[numbers(batch, 8, 14, 14, dtype=dtype)] for batch in (1, 3)], dtype)
    assert text.count("// conv: implicit GEMM") >= 2
    assert dtype == "float32" or (text.count("cp_async<16, ") >= 6 and "put_shared<" not in text)  # channels-last


@pytest.mark.parametrize("dtype", DTYPES)
def test_first_layers_of_a_network_of_images(emulator, dtype):
    """Three channels become four, which are copied at once; what a pool pads is stored as the convolution gives it."""
    pool = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}

    def build(b: FunctionBuilder) -> Any:
        weight = numbers(16, 3, 7, 7, dtype=dtype, scale=0.1)
        y = b.op("nn.conv2d", b.input("x", (N, 3, 29, 31), dtype), weight, strides=(2, 2), padding=(3, 3, 3, 3))
        y = b.op("nn.relu", b.op("add", y, numbers(1, 16, 1, 1, dtype=dtype)))
        return b.op("nn.max_pool2d", y, **pool)

    text = check(build, [[numbers(batch, 3, 29, 31, dtype=dtype)] for batch in (1, 2)], dtype)
    rules = re.findall(r"^// (\w+): ", text, re.MULTILINE)
    assert rules == ["conv", "fallback"] if dtype == "float32" else ["fallback", "conv", "fallback"]
    assert dtype == "float32" or (text.count("cp_async<8, ") == 2 and "put_shared<" not in text)


# --- whatever comes ---------------------------------------------------------------------------------------------------
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(modules(symbolic=True))
def test_random_programs(emulator, program: RandomProgram):
    exe = ky.compile(program.module, target=ky.Target("cuda"), backends=[])
    found = ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](*program.inputs)
    results = found if isinstance(found, tuple) else [found]
    for actual, wanted in zip(results, evaluate(program.module, program.inputs), strict=True):
        np.testing.assert_allclose(actual.numpy(), wanted, rtol=1e-4, atol=1e-4)
