"""Kernels that sort, on the emulator: tiles, merges, the first of a row, and every dtype."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims, dtypes
from kernelyard.ir import TensorType
from kernelyard.runtime.artifact import elf
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis, Expr
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.generator import compiler_is_here
from kernelyard_native_cuda.schedule.sort import TILE

from .conftest import generate

N, K = dims.symbol("n"), dims.symbol("k")


@pytest.fixture(autouse=True)
def recorded(emulator, monkeypatch):
    """Accesses of tensors are recorded, so that races are found."""
    monkeypatch.setattr(emulator, "checks", Checks(tensors=True))


def argsort(
    shape: tuple[dims.Dim, ...], axis: int, count: dims.Dim, dtype: str = "float32", *, descending: bool = False
) -> PrimFunc:
    """The first places along an axis, and the values there."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType(shape, dtype))
    result = (*shape[:axis], count, *shape[axis + 1 :])

    def along(at: tuple[Axis, ...], place: Expr) -> tuple[Expr, ...]:
        return (*at[:axis], place, *at[axis + 1 :])

    places = b.reduce(
        "argsort_descending" if descending else "argsort",
        result,
        (shape[axis],),
        lambda at, p: x[along(at, p[0])],
        arg=lambda at, _: at[axis],
    )
    return b.finish((b.compute(result, lambda *at: x[along(at, places[at])]), places))


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers with many ties; of floats, with NaN, infinities and both zeros."""
    rng = np.random.default_rng(0)
    if not dtypes.is_float(dtype):
        low = 0 if dtype == "bool" or dtype in dtypes.UNSIGNED else -50
        return rng.integers(low, 2 if dtype == "bool" else 50, shape).astype(dtypes.to_numpy(dtype))
    found = rng.standard_normal(shape)
    chosen = rng.integers(0, 30, shape)
    for code, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -np.nan)):
        found = np.where(chosen == code, value, found)
    return found.astype(dtypes.to_numpy(dtype))


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_dtypes(check, dtype):
    x = numbers((2, TILE + 300), dtype)
    check(argsort(x.shape, 1, x.shape[1], dtype), x)
    check(argsort(x.shape, 1, 9, dtype, descending=True), x)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [1, 7, TILE, 3 * TILE + 1])
def test_sizes(check, axis, size):
    x = numbers((size, 3) if axis == 0 else (3, size), "float32")
    for count in sorted({1, min(size, 5), size}):
        check(argsort(x.shape, axis, count), x)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (5, 0), (TILE, 3), (TILE + 1, TILE + 1), (4100, 2000)])
def test_symbolic_sizes(check, size, count):
    check(argsort((3, N), 1, K, descending=True), numbers((3, size), "float32"), symbols={"n": size, "k": count})


def test_one_position_of_each_row(check):
    """The median: no axis counts positions."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((5, N), "float16"))
    middle = b.reduce("argsort", (5,), (N,), lambda at, p: x[at[0], p[0]], arg=lambda at, _: at[0] * 0 + 50)
    check(b.finish((middle,)), numbers((5, 101), "float16"), symbols={"n": 101})


@pytest.mark.slow
def test_it_compiles_for_gpus():
    if not compiler_is_here():
        pytest.skip("neither nvcc nor NVRTC is installed")
    functions = {dtype: argsort((3, N), 1, K, dtype) for dtype in dtypes.DTYPES}
    module = generate({**functions, "short": argsort((3, 100), 1, 5)}, "sm_80")
    image = np.frombuffer(module.image.cubins["sm_80"], np.uint8)
    assert [kernel for kernel in module.image.kernels if elf.find_section(image, f".text.{kernel}") is None] == []
