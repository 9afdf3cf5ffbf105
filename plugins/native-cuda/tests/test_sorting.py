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
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.rules import schedule
from kernelyard_native_cuda.schedule.sort import LEAST_BY_DIGITS, MOST_ROWS, TILE

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


# --- long rows: by digits ---------------------------------------------------------------------------------------------
def kernels_of(function: PrimFunc) -> list[str]:
    return [kernel.name for kernel in schedule(function, "f", ANY_MACHINE).kernels]


def test_few_long_rows_are_sorted_by_digits():
    size = LEAST_BY_DIGITS
    assert len(kernels_of(argsort((size - 1,), 0, size - 1))) == 1
    assert len(kernels_of(argsort((size,), 0, size))) == 2 + 3 * 4
    assert len(kernels_of(argsort((size,), 0, 5, "float64"))) == 2 + 3 * 8
    assert len(kernels_of(argsort((MOST_ROWS + 1, size), 1, 5))) == 1
    assert len(kernels_of(argsort((MOST_ROWS + 1, size), 1, size, "bool"))) == 2 + 3
    assert len(kernels_of(argsort((N,), 0, N))) == 1 + 2 + 3 * 4


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_digits_of_every_dtype(check, dtype):
    x = numbers((LEAST_BY_DIGITS + 77,), dtype)
    check(argsort(x.shape, 0, x.shape[0], dtype, descending=dtype in ("int8", "int32", "bfloat16")), x)


@pytest.mark.parametrize("shape", [(100_000,), (2, LEAST_BY_DIGITS), (LEAST_BY_DIGITS + 1, 2)])
def test_digits_along_any_axis(check, shape):
    axis = int(np.argmax(shape))
    check(argsort(shape, axis, shape[axis]), numbers(shape, "float32"))


@pytest.mark.parametrize("low", [-(2**63), -5, 0])
def test_digits_of_wide_integers(check, low):
    x = np.random.default_rng(1).integers(low, max(low + 2, low // -2), LEAST_BY_DIGITS)
    check(argsort(x.shape, 0, x.shape[0], "int64", descending=low == -5), x)


@pytest.mark.parametrize("size", [0, 1, LEAST_BY_DIGITS - 1, LEAST_BY_DIGITS])
def test_a_length_that_is_known_when_it_runs(check, size):
    """Tiles or digits, whichever is faster: the kernels of the other are started with no blocks."""
    check(argsort((N,), 0, N), numbers((size,), "float32"), symbols={"n": size})


def test_one_position_of_a_long_row(check):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((2, LEAST_BY_DIGITS), "float32"))
    middle = b.reduce("argsort", (2,), (LEAST_BY_DIGITS,), lambda at, p: x[at[0], p[0]], arg=lambda at, _: at[0] + 9000)
    check(b.finish((middle,)), numbers((2, LEAST_BY_DIGITS), "float32"))


@pytest.mark.slow
def test_it_compiles_for_gpus():
    if not compiler_is_here():
        pytest.skip("neither nvcc nor NVRTC is installed")
    functions = {dtype: argsort((3, N), 1, K, dtype) for dtype in dtypes.DTYPES}
    more = {"short": argsort((3, 100), 1, 5), "long": argsort((100_000,), 0, 100_000)}
    module = generate({**functions, **more}, "sm_80")
    image = np.frombuffer(module.image.cubins["sm_80"], np.uint8)
    assert [kernel for kernel in module.image.kernels if elf.find_section(image, f".text.{kernel}") is None] == []
