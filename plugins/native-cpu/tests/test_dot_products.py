"""Dot products of bytes: one instruction where the processor has it, and exact on all others."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.ir import TensorType
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import binary
from kernelyard.tir.interpreter import evaluate
from kernelyard_native_cpu.generator import write_module
from kernelyard_native_cpu.machine import Machine, features_of_level, resolve_machine

from .conftest import compile_one, run_module

LEVELS = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]


def product(rows: int, depth: int, columns: int) -> PrimFunc:
    b = PrimFuncBuilder()
    x, w = (
        b.input(name, TensorType(shape, "int32")) for name, shape in (("x", (rows, depth)), ("w", (depth, columns)))
    )
    total = b.reduce("sum", (rows, columns), (depth,), lambda at, p: binary("usdot", x[at[0], p[0]], w[p[0], at[1]]))
    return b.finish((total,))


def words(stored: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(stored).view(np.int32)


@pytest.mark.parametrize("name", LEVELS)
def test_an_instruction_where_there_is_one(name: str) -> None:
    level = resolve_machine(name)
    with_vnni = Machine(level.architecture, (*level.features, "avx512vnni"))
    assert "vpdpbusd" not in write_module({"kernel": product(1, 8, 64)}, level)[1]
    assert ("vpdpbusd" in write_module({"kernel": product(1, 8, 64)}, with_vnni)[1]) == with_vnni.has_vnni


def test_vectors_of_256_bits_have_it_too() -> None:
    machine = Machine("x86_64", (*features_of_level("x86-64-v3"), "avxvnni"))
    assert "vpdpbusd.256" in write_module({"kernel": product(1, 8, 64)}, machine)[1]


@pytest.mark.parametrize("shape", [(1, 8, 64), (3, 5, 40), (1, 7, 1), (6, 9, 17)], ids=str)
@pytest.mark.parametrize("name", [None, *LEVELS])
def test_bytes_are_added_up_exactly(name: str | None, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(depth)
    x = rng.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), (rows, depth, 4))
    w = rng.choice(np.array([-128, -127, -1, 0, 1, 127], np.int8), (depth, columns, 4))
    function, arrays = product(*shape), [words(x)[..., 0], words(w)[..., 0]]
    right = np.einsum("rkb,kcb->rc", x.astype(np.int64), w.astype(np.int64))
    (found,) = run_module(compile_one(function, name), "kernel", arrays)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(evaluate(function, arrays)[0], right)
