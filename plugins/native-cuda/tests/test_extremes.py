"""Kernels that find places of extremes, on the emulator: one block of threads, and parts of a row over many."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.runtime.artifact import elf
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.generator import compiler_is_here
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.rules import schedule

from .conftest import check_kernel, generate
from .test_rules import N, TensorType, f32, lower, rules_of
from .test_sorting import numbers

NAMES = ("argmax", "argmin")
KINDS = [dtype for dtype in dtypes.DTYPES if dtype != "bool"]
SIZES = (1, 33, 1024, 5003, 32_000, 100_000)
WAYS: tuple[dict[str, bool], ...] = ({}, {"keepdims": True}, {"select_last_index": True})


@pytest.fixture(autouse=True)
def recorded(emulator, monkeypatch):
    """Accesses of tensors are recorded, so that races are found."""
    monkeypatch.setattr(emulator, "checks", Checks(tensors=True))


def test_rules():
    assert rules_of(lower("argmax", f32(4, 100), axis=1)) == ["reduction"]
    assert rules_of(lower("argmax", f32(4, 32_000), axis=1)) == ["reduction", "reduction"]
    assert rules_of(lower("argmax", f32(4, 32_003), axis=1)) == ["reduction"]
    assert rules_of(lower("argmax", f32(1000, 32_000), axis=1)) == ["reduction"]
    assert rules_of(lower("argmax", f32(N, 32_000), axis=1)) == ["reduction"]
    assert rules_of(lower("argmax", f32(4, 9), axis=1)) == ["fallback"]


def test_parts_keep_many_multiprocessors_busy():
    first, rest = schedule(lower("argmax", f32(1, 128_256), axis=1), "kernel", ANY_MACHINE).kernels
    assert (first.blocks[0], rest.blocks[0]) == (64, 1)


@pytest.fixture(scope="module")
def agree(emulator) -> Callable[..., None]:
    """`agree(symbol, x, symbols={})`: a function gives what the interpreter gives. One program has all of them."""
    functions = {
        f"{name}_{dtype}_{size}": lower(name, TensorType((2, size), dtype), axis=1)
        for name in NAMES
        for dtype in KINDS
        for size in (100, 4096)
    }
    for name in NAMES:
        for number, how in enumerate(WAYS):
            for size in (*SIZES, N):
                functions[f"{name}_of_{size}_in_way_{number}"] = lower(name, f32(1, size), axis=1, **how)
    module = generate(functions)

    def agrees(symbol: str, x: np.ndarray, symbols: Mapping[str, int] | None = None) -> None:
        check_kernel(emulator, module, symbol, functions[symbol], [x], symbols)

    return agrees


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_dtypes(agree, name, dtype):
    for size in (100, 4096):
        agree(f"{name}_{dtype}_{size}", numbers((2, size), dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_sizes(agree, name, size):
    x = np.round(numbers((1, size), "float32"), 1)
    x = np.where(np.isnan(x), 0, x)  # else the first NaN is what is found
    for number in range(len(WAYS)):
        agree(f"{name}_of_{size}_in_way_{number}", x)
        agree(f"{name}_of_{N}_in_way_{number}", x, symbols={"n": size})


def test_ties_and_nan_in_different_parts(check):
    x = np.zeros((3, 8192), np.float32)
    x[0, [700, 5000]] = 3
    x[1, [4000, 100]] = np.nan
    x[2] = -np.inf
    check(lower("argmax", f32(3, 8192), axis=1), x)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes(check, axis):
    shape = tuple(np.roll((3, 5, 2048), axis + 1).tolist())
    check(lower("argmin", f32(*shape), axis=axis), numbers(shape, "float32"))


@pytest.mark.slow
def test_it_compiles_for_gpus():
    if not compiler_is_here():
        pytest.skip("neither nvcc nor NVRTC is installed")
    functions = {dtype: lower("argmax", TensorType((3, 32_000), dtype), axis=1) for dtype in KINDS}
    module = generate(functions, "sm_80")
    image = np.frombuffer(module.image.cubins["sm_80"], np.uint8)
    assert [kernel for kernel in module.image.kernels if elf.find_section(image, f".text.{kernel}") is None] == []
