"""Mutants of attention by warp groups: without a wait, a fence or a bound; each one is found by running it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelyard.errors import ExecutionError
from kernelyard.tir import PrimFunc
from kernelyard_native_cuda import generator
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule.machine import machine_of

from .test_conv_and_attention import attention, numbers
from .test_mutants import check_right, mutated
from .test_wgmma_attention import generate

TILE = "struct WarpGroupAttention {"
MUTANTS: list[tuple[str, int, str]] = [
    ("at.queries.release();", 1, ""),
    ("keys.wait();", 1, ""),
    ("values.wait();", 1, ""),
    ("keys.release();", 1, ""),
    ("values.release();", 1, ""),
    ("wgmma_fence();", 1, ""),
    ("wgmma_wait<1>();", 1, ""),
    ("at.stages.wait();", 2, ""),
    ("consumer() * 64", 1, "0"),
    ("all.weighted[i] *= scales[i / 2 % 2];", 1, ""),
    ("all.total[half] * scales[half]", 1, "all.total[half]"),
    ("IS_WHOLE || column <= last[half]", 1, "IS_WHOLE || column < last[half]"),
    ("step < whole", 1, "true"),
    ("step > whole", 1, "false"),
]
SHAPES: list[tuple[Any, ...]] = [(1, 200, 1, 64), (1, 333, 1, 64), (1, 333, 1, 64)]


@pytest.fixture(scope="module")
def causal() -> tuple[PrimFunc, NativeCudaModule]:
    """An attention of several steps, all tiles of which one block has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "find_kernel_compiler", lambda: None)
        patch.setattr(generator, "machine_of", lambda *given: replace(machine_of(*given), multiprocessors=1))
        function = attention(*SHAPES, "float16", "bottom_right")
        return function, generate({"kernel": function})


def check_in_both_orders(emulator, monkeypatch, function: PrimFunc, module: NativeCudaModule) -> None:
    """Copies come the last first, and in turn."""
    for order in (1, 0):
        monkeypatch.setattr(emulator, "checks", Checks(order=order))
        check_right(emulator, function, module, numbers("float16", *SHAPES))


def test_what_mutants_are_made_of_is_right(emulator, monkeypatch, causal):
    check_in_both_orders(emulator, monkeypatch, *causal)


@pytest.mark.parametrize(("old", "number", "new"), MUTANTS)
def test_mutants_are_found(emulator, monkeypatch, causal, old, number, new):
    function, module = causal
    mutant = mutated(module, old, number, new, TILE)
    with pytest.raises(
        (ExecutionError, AssertionError), match=r"a kernel failed in the emulator|Not equal to tolerance"
    ):
        check_in_both_orders(emulator, monkeypatch, function, mutant)
