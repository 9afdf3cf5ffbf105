"""Attention by warp groups of sm_90a: which there is a kernel for, and that it gives what the interpreter gives."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.tir import PrimFunc
from kernelyard.tir.interpreter import evaluate
from kernelyard.transform import FuseTransposeMatmul
from kernelyard_native_cuda import generator
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import wgmma_attention
from kernelyard_native_cuda.schedule.machine import machine_of
from kernelyard_native_cuda.schedule.rules import schedule

from .conftest import assert_close, check_kernel, run_on
from .test_conv_and_attention import N, attention, numbers
from .test_wgmma import generate, multiprocessors, no_compiler

__all__ = ["no_compiler"]  # every test's: the emulator takes text alone


HOPPER = machine_of(["sm_90"], allows_wgmma=True)


def by_warp_groups(functions: dict[str, PrimFunc]) -> NativeCudaModule:
    """The functions compiled, a kernel by warp groups in each."""
    module = generate(functions)
    assert module.image.source.count("// wgmma_attention: warp groups") == len(functions)
    return module


# Heads of queries, and of keys and values; elements of queries and keys, and of values.
ATTENTIONS = [
    ((4, 2, 64, 64), "none", "float16"),
    ((4, 2, 64, 64), "bottom_right", "bfloat16"),
    ((2, 2, 128, 128), "top_left", "float16"),
    ((2, 2, 40, 72), "bottom_right", "float16"),
    ((1, 1, 96, 8), "none", "bfloat16"),
]


def attention_of(sizes: tuple[int, int, int, int], causal: str, dtype: str) -> PrimFunc:
    heads, groups, size, wide = sizes
    return attention((2, N, heads, size), (2, N + 7, groups, size), (2, N + 7, groups, wide), dtype, causal)


@pytest.fixture(scope="module")
def attentions() -> NativeCudaModule:
    """All of them as one program: most of what the emulator compiles is in every program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "find_kernel_compiler", lambda: None)
        multiprocessors(patch, 3)  # blocks have several tiles each
        return by_warp_groups({f"f{number}": attention_of(*case) for number, case in enumerate(ATTENTIONS)})


@pytest.mark.parametrize(("sizes", "causal", "dtype"), ATTENTIONS)
def test_attention_of_any_length(emulator, monkeypatch, attentions, dtype, causal, sizes):
    function = attention_of(sizes, causal, dtype)
    number = ATTENTIONS.index((sizes, causal, dtype))
    heads, groups, size, wide = sizes
    for order, n in enumerate((1, 121, 310)):
        given = numbers(dtype, (2, n, heads, size), (2, n + 7, groups, size), (2, n + 7, groups, wide))
        monkeypatch.setattr(emulator, "checks", Checks(tensors=True, order=order))
        (found,) = run_on(emulator, attentions, f"f{number}", given, {"n": n})
        assert_close(found, evaluate(function, given, {"n": n})[0], dtype)


@pytest.mark.parametrize("heads_first", ["qkv", "kv"])
def test_operands_may_have_heads_first(emulator, heads_first):
    b = FunctionBuilder()
    rows = {"q": 80, "k": 150, "v": 150}
    shapes = {name: (2, 2, many, 64) if name in heads_first else (2, many, 2, 64) for name, many in rows.items()}
    operands = [b.input(name, shape, "float16") for name, shape in shapes.items()]
    permuted = [b.op("permute_dims", x, axes=(0, 2, 1, 3)) if x.name in heads_first else x for x in operands]
    after = FuseTransposeMatmul()(IRModule({"main": b.function(b.op("nn.attention", *permuted))}))
    (function,) = (each for each in after.functions.values() if isinstance(each, PrimFunc))
    check_kernel(emulator, by_warp_groups({"f": function}), "f", function, numbers("float16", *shapes.values()))


@pytest.mark.parametrize("bias", [(1, 2, 130, 200), (3, 1, 130, 1)])
def test_a_bias_is_added_to_scores_in_registers(emulator, bias):
    shapes = ((3, 130, 2, 64), (3, 200, 2, 64), (3, 200, 2, 64))
    function = attention(*shapes, "float16", "none", bias)
    check_kernel(emulator, by_warp_groups({"f": function}), "f", function, numbers("float16", *shapes, bias))


def test_rows_that_see_nothing_are_no_numbers(emulator):
    shapes = ((1, 200, 1, 64), (1, 20, 1, 64), (1, 20, 1, 64))
    function = attention(*shapes, "float16", "bottom_right")
    given = numbers("float16", *shapes)
    (found,) = run_on(emulator, by_warp_groups({"f": function}), "f", given)
    assert np.isnan(found[0, :180]).all()
    assert_close(found[0, 180:], evaluate(function, given)[0][0, 180:], "float16")


@pytest.mark.parametrize(
    ("q", "arch", "words"),
    [
        ((1, 128, 2, 64), "sm_80,sm_90", "the target is not sm_90 alone"),
        ((1, 40, 2, 64), "sm_90", "fewer than 64 queries"),
        ((1, 128, 1, 60), "sm_90", "rows are not known to be a multiple of 16 bytes apart"),
    ],
)
def test_what_is_left_to_mma_says_why(q, arch, words):
    function = attention(q, q, q, "float16", "none")
    (choices,) = schedule(function, "kernel", machine_of(arch.split(","), allows_wgmma=True)).choices
    assert words in dict(choices)["wgmma_attention"]
    assert choices[-1][0] == "attention"


def test_registers_and_shared_memory_have_room():
    give, take = wgmma_attention.REGISTERS
    threads = wgmma_attention.GROUP * (wgmma_attention.CONSUMERS + 1)
    # Registers that are taken are waited for until they are given: see test_wgmma.
    assert wgmma_attention.GROUP * (give + take * wgmma_attention.CONSUMERS) <= (1 << 16) // threads // 8 * 8 * threads
    function = attention_of((2, 2, 128, 128), "none", "float16")
    (kernel,) = schedule(function, "kernel", HOPPER).kernels
    assert "4 stages" in kernel.text
    assert kernel.shared_nbytes <= HOPPER.shared_for_block
