"""Mutants: generated kernels with a barrier, a bound, a wait or a swizzle taken away; each one is found by running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from kernelyard.errors import ExecutionError
from kernelyard.ir import TensorType
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate
from kernelyard_native_cuda.generator import GENERATED
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import matmul

from .conftest import assert_close, generate, run_on
from .test_conv_and_attention import attention, numbers
from .test_rules import f32, lower, random, whole

BARRIER = "__syncthreads();"


def f16(*shape: int) -> TensorType:
    return TensorType(shape, "float16")


def half(*shape: int) -> np.ndarray:
    return random(*shape).astype(np.float16)


def product(m: int, k: int, n: int, dtype: str = "float32") -> tuple[PrimFunc, tuple[np.ndarray, np.ndarray]]:
    function = lower("matmul", TensorType((m, k), dtype), TensorType((k, n), dtype))
    return function, (whole(m, k, dtype=dtype), whole(k, n, dtype=dtype))


FUNCTIONS = {
    "matmul": product(33, 70, 34),  # in tiles of 32x64
    "tensor": product(70, 200, 72, "float16"),  # in tiles of 64x64
    "tensor of odd sizes": product(33, 71, 35, "float16"),
    "layer norm": (
        lower("nn.layer_norm", f32(3, 1028), f32(1028), f32(1028), axes=(1,), epsilon=1e-5),
        (random(3, 1028), random(1028), random(1028)),
    ),
    "transpose": (lower("permute_dims", f32(40, 50), axes=(1, 0)), (random(40, 50),)),
    "cumsum": (lower("cumsum", f32(10, 7), axis=1), (random(10, 7),)),
    "gemv": product(1, 57, 61),
    "low batch": product(3, 64, 61, "float16"),
    "conv": (
        lower("nn.conv2d", f32(1, 3, 9, 9), f32(5, 3, 3, 3), strides=(1, 1), padding=(1, 1, 1, 1)),
        (whole(1, 3, 9, 9), whole(5, 3, 3, 3)),
    ),
    "attention": (
        attention((1, 70, 1, 16), (1, 150, 1, 16), (1, 150, 1, 16), "float16", "none"),
        tuple(numbers("float16", (1, 70, 1, 16), (1, 150, 1, 16), (1, 150, 1, 16))),
    ),
    "causal": (
        attention((1, 70, 1, 16), (1, 150, 1, 16), (1, 150, 1, 16), "float16", "top_left"),
        tuple(numbers("float16", (1, 70, 1, 16), (1, 150, 1, 16), (1, 150, 1, 16))),
    ),
    "columns": (lower("sum", f32(128, 40), axes=(0,)), (random(128, 40),)),
    "sum": (lower("sum", f32(3, 200), axes=(1,)), (random(3, 200),)),
}
STAGES, TENSOR, PLAIN, REDUCERS = "// A sum in steps", "// --- tensor cores", "// --- CUDA cores", "// --- reducers"
WAIT = "cp_async_wait<STAGES - 2>();"
# Of what; what is replaced, at which occurrence behind which text, by what.
MUTANTS = [
    ("matmul", BARRIER, 1, "", STAGES),
    ("matmul", WAIT, 1, "", STAGES),
    ("matmul", WAIT, 1, "cp_async_wait<STAGES - 1>();", STAGES),
    ("matmul", "own < 33ll && k < 70ll", 1, "own < 33ll", GENERATED),
    ("matmul", "own < 33ll && k < 70ll", 1, "k < 70ll", GENERATED),
    ("matmul", "a_own < 33ll && b_own < 34ll", 1, "b_own < 34ll", GENERATED),
    ("matmul", "a_own < 33ll && b_own < 34ll", 1, "a_own < 33ll", GENERATED),
    ("matmul", "* PACK_B + j % PACK_B", 1, "* PACK_B", PLAIN),
    ("tensor", BARRIER, 1, "", STAGES),
    ("tensor", BARRIER, 2, "", STAGES),
    ("tensor", WAIT, 1, "", STAGES),
    ("tensor", WAIT, 1, "cp_async_wait<STAGES - 1>();", STAGES),
    ("tensor", "cp_async_commit();", 2, "", STAGES),
    ("tensor", "fill(free, step + STAGES - 1)", 1, "fill(now, step + STAGES - 1)", STAGES),
    ("tensor", "base + piece(own", 1, "base + 16 + piece(own", TENSOR),
    ("tensor", "lane % 8 + along_own * 8", 1, "lane % 8 + along_sum * 8", TENSOR),
    ("tensor", "(piece ^ swizzle)", 1, "((piece ^ swizzle) & 6)", TENSOR),
    ("tensor", "line & 7", 1, "threadIdx.x & 7", TENSOR),
    ("tensor", BARRIER, 1, "", GENERATED),
    ("tensor", BARRIER, 2, "", GENERATED),
    ("tensor", "k < 200ll && (a_inside", 1, "(a_inside", GENERATED),
    ("tensor", "own < 70ll ? inside", 1, "true ? inside", GENERATED),
    ("tensor", "own < 72ll && k < 200ll", 1, "own < 72ll", GENERATED),
    ("tensor", "own < 72ll && k < 200ll", 1, "k < 200ll", GENERATED),
    ("tensor", "a_own < 70ll && b_own < 72ll", 1, "a_own < 70ll", GENERATED),
    ("tensor of odd sizes", "own < 33ll && k < 71ll", 1, "own < 33ll", GENERATED),
    ("gemv", BARRIER, 1, "", GENERATED),
    ("gemv", "own < 61ll ? 57ll", 1, "true ? 57ll", GENERATED),
    ("gemv", "own < 61ll ? 57ll", 1, "own < 61ll ? 58ll", GENERATED),
    ("gemv", "if (result < 61ll)", 1, "if (true)", GENERATED),
    ("low batch", BARRIER, 1, "", GENERATED),
    ("low batch", BARRIER, 2, "", GENERATED),
    ("conv", ">= 0ll", 1, ">= -1ll", GENERATED),
    ("conv", "< 9ll)", 1, "< 10ll)", GENERATED),
    ("attention", WAIT, 1, "", STAGES),
    ("attention", BARRIER, 1, "", STAGES),
    ("attention", "all.weighted[j][i] *= scale;", 1, ";", TENSOR),
    ("attention", "all.total[half] * scale", 1, "all.total[half]", TENSOR),
    ("attention", "lanes_reduced<Larger, 4>", 1, "lanes_reduced<Larger, 2>", TENSOR),
    ("attention", "row < 70ll && column < 150ll", 1, "row < 70ll", GENERATED),
    ("attention", "row < 70ll && value < 16ll", 1, "value < 16ll", GENERATED),
    ("attention", "shift * LOG2_E", 1, "shift", TENSOR),
    ("causal", "+ 63 <= a_start", 1, "<= a_start", GENERATED),
    ("causal", "= a_start + 64 +", 1, "= a_start +", GENERATED),
    ("columns", "v1 * 32ll", 1, "v1 * 31ll", GENERATED),
    ("transpose", BARRIER, 1, "", GENERATED),
    ("transpose", "across < 50ll && along < 40ll", 1, "across < 50ll", GENERATED),
    ("cumsum", "< 10ll)", 1, "< 100ll)", GENERATED),
    ("sum", "k < 200ll", 1, "k < 201ll", GENERATED),
    ("layer norm", BARRIER, 1, "", REDUCERS),
    ("layer norm", BARRIER, 2, "", REDUCERS),
    ("layer norm", "if (start >= 1028) continue;", 1, "", GENERATED),
    ("layer norm", "piece * 128", 2, "piece * 64", GENERATED),
]


def mutated(module: NativeCudaModule, old: str, number: int, new: str, start: str) -> NativeCudaModule:
    """The module with the occurrence of that number replaced, counted from `start` on."""
    head, text = module.image.source.split(start, 1)
    parts = text.split(old)
    assert len(parts) > number, f"{old} is there {len(parts) - 1} times"
    text = old.join(parts[:number]) + new + old.join(parts[number:])
    changed = NativeCudaModule([module.function(symbol) for symbol in module.symbols()], "", {})
    changed.image = replace(module.image, source=f"{head}{start}{text}")
    return changed


def check_right(emulator, function: PrimFunc, module: NativeCudaModule, inputs: Sequence[np.ndarray]) -> None:
    found = run_on(emulator, module, "kernel", inputs)
    for actual, wanted, buffer in zip(found, evaluate(function, list(inputs)), function.outputs, strict=True):
        assert_close(actual, wanted, buffer.dtype)


@pytest.mark.parametrize(("name", "old", "number", "new", "start"), MUTANTS)
def test_mutants_are_found(emulator, monkeypatch, name, old, number, new, start):
    monkeypatch.setattr(matmul, "PLAIN_SHAPES", [matmul.PlainShape(32, 64, 2, 4)])
    monkeypatch.setattr(matmul, "TENSOR_SHAPES", [matmul.TensorShape(64, 64, 2, 2)])
    function, inputs = FUNCTIONS[name]
    module = generate({"kernel": function})
    check_right(emulator, function, module, inputs)
    with pytest.raises(
        (ExecutionError, AssertionError), match=r"a kernel failed in the emulator|Not equal to tolerance"
    ):
        check_right(emulator, function, mutated(module, old, number, new, start), inputs)
