"""Bank conflicts of shared memory, counted on the emulator: tiles have none, and the count finds what there are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernelyard.target import Target
from kernelyard_native_cuda.drivers.emulator import EmulatedKernels
from kernelyard_native_cuda.generator import GENERATED, NativeCudaGenerator
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule import matmul

from .conftest import generate, run_on
from .test_conv_and_attention import attention, numbers
from .test_mutants import mutated
from .test_products import inputs_of, product
from .test_rules import f32, lower, random

SIDE = 128
SIZES = {"m": SIDE, "n": SIDE, "k": SIDE}
TENSOR = [shape for shape in matmul.TENSOR_SHAPES if shape.columns >= 32]
PLAIN = [shape for shape in matmul.PLAIN_SHAPES if min(shape.each_down, shape.each_across) >= 4]


def conflicts_of(emulator, module: NativeCudaModule, inputs: Sequence[np.ndarray]) -> tuple[int, int]:
    """Passes over the banks beyond those that are needed, and all passes, of running a module's function."""
    kernels = module._load(emulator)
    assert isinstance(kernels, EmulatedKernels)
    library = kernels._library
    library.emulation_conflicts.restype = library.emulation_passes.restype = ctypes.c_ulonglong
    library.emulation_count_conflicts(1)
    try:
        run_on(emulator, module, "kernel", inputs)
        return library.emulation_conflicts(), library.emulation_passes()
    finally:
        library.emulation_count_conflicts(0)


def tiled(monkeypatch, shape: Any, order: tuple[str, str], dtype: str, tf32: bool = False) -> NativeCudaModule:
    monkeypatch.setattr(matmul, "_choose", lambda it, shapes, machine: shape)
    function = product(order[0], order[1], dtype, SIZES)
    module = NativeCudaGenerator().generate({"kernel": function}, Target("cuda"), {"tf32": tf32})
    assert isinstance(module, NativeCudaModule)
    return module


ORDERS = [("mk", "kn"), ("mk", "nk"), ("km", "kn")]
CASES = [(shape, ORDERS[0], "float16") for shape in TENSOR]
CASES += [(TENSOR[0], order, dtype) for order in ORDERS for dtype in ("float16", "int8", "float32")]


@pytest.mark.parametrize(("shape", "order", "dtype"), CASES)
def test_tiles_of_tensor_cores_meet_no_bank_twice(emulator, monkeypatch, shape, dtype, order: tuple[str, str]):
    module = tiled(monkeypatch, shape, order, dtype, tf32=True)
    found, passes = conflicts_of(emulator, module, inputs_of(order, dtype, SIZES))
    assert found == 0
    assert passes > 0


@pytest.mark.parametrize("order", ORDERS, ids="_".join)
@pytest.mark.parametrize("shape", PLAIN, ids=lambda shape: f"{shape.rows}x{shape.columns}")
def test_tiles_of_cuda_cores_meet_no_bank_twice(emulator, monkeypatch, shape, order: tuple[str, str]):
    module = tiled(monkeypatch, shape, order, "float32")
    assert conflicts_of(emulator, module, inputs_of(order, "float32", SIZES))[0] == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [("line & 7", "0"), ("(piece ^ swizzle)", "piece"), ("B::OWN + 8", "B::OWN")],
)
def test_a_tile_that_is_not_swizzled_has_conflicts(emulator, monkeypatch, old, new):
    module = tiled(monkeypatch, matmul.TENSOR_SHAPES[0], ("mk", "kn"), "float16")
    worse = mutated(module, old, 1, new, "// --- tensor cores")
    assert conflicts_of(emulator, worse, inputs_of(("mk", "kn"), "float16", SIZES))[0] > 0


def test_attention_meets_no_bank_twice(emulator):
    shapes = [(1, 64, 2, 64), (1, 128, 2, 64), (1, 128, 2, 64)]
    module = generate({"kernel": attention(shapes[0], shapes[1], shapes[2], "float16", "none")})
    assert conflicts_of(emulator, module, numbers("float16", *shapes))[0] == 0


def test_transposes_meet_no_bank_twice(emulator):
    module = generate({"kernel": lower("permute_dims", f32(64, 64), axes=(1, 0))})
    assert conflicts_of(emulator, module, [random(64, 64)])[0] == 0
    worse = mutated(mutated(module, "row * 33", 1, "row * 32", GENERATED), "lane * 33", 1, "lane * 32", GENERATED)
    assert conflicts_of(emulator, worse, [random(64, 64)])[0] > 0
