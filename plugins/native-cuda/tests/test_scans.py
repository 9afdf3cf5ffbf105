"""Kernels that scan, on the emulator: tiles, look-back, any axis, and every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelyard import dims, dtypes, legalize
from kernelyard.ir import TensorType, get_op
from kernelyard.runtime.artifact import elf
from kernelyard.tir import PrimFunc
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.generator import compiler_is_here
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.rules import schedule
from kernelyard_native_cuda.schedule.scan import TILE

from .conftest import generate, run_on

N = dims.symbol("n")
LAST_FIRST, SEED = 1, 7
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture(autouse=True)
def recorded(emulator, monkeypatch):
    """Accesses of tensors are recorded, so that races are found."""
    monkeypatch.setattr(emulator, "checks", Checks(tensors=True))


def cumulative(name: str, shape: dims.Shape, dtype: str, **attributes: Any) -> PrimFunc:
    op, type_ = get_op(name), TensorType(shape, dtype)
    attrs = op.check_attributes(attributes)
    return legalize.legalize_call(name, [type_], attrs, op.infer_type([type_], attrs))


def numbers(shape: tuple[int, ...], dtype: str, name: str = "cumsum") -> np.ndarray:
    rng = np.random.default_rng(0)
    if not dtypes.is_float(dtype):
        return rng.integers(0 if dtype in dtypes.UNSIGNED else -4, 5, shape).astype(dtypes.to_numpy(dtype))
    spread = 0.01 if name == "cumprod" else 1.0
    centre = 1.0 if name == "cumprod" else 0.1
    return (rng.uniform(-spread, spread, shape) + centre).astype(dtypes.to_numpy(dtype))


def assert_totals(emulator, name: str, x: np.ndarray, dtype: str, shape=None, symbols=None, **how: Any) -> None:
    function = cumulative(name, shape or x.shape, dtype, **how)
    (found,) = run_on(emulator, generate({"kernel": function}), "kernel", [x], symbols)
    op = get_op(name)
    assert op.reference is not None
    wanted = op.reference(x, **op.check_attributes(how)).astype(np.float64)
    scale = np.abs(wanted).max(initial=1)
    tolerance = TOLERANCES.get(dtype, 0)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=tolerance, atol=scale * tolerance)


def rules_of(function: PrimFunc) -> list[str]:
    return [reasons[-1][0] for reasons in schedule(function, "f", ANY_MACHINE).choices]


@pytest.mark.parametrize("dtype", [d for d in dtypes.DTYPES if d != "bool" and not d.startswith("float8")])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_dtypes(emulator, name, dtype):
    assert_totals(emulator, name, numbers((2, 2 * TILE + 77), dtype, name), dtype, axis=1)


@pytest.mark.parametrize("size", [1, 31, TILE, TILE + 1, 100_000])
@pytest.mark.parametrize("how", [{}, {"exclusive": True}, {"reverse": True}])
def test_sizes(emulator, size, how):
    assert_totals(emulator, "cumsum", numbers((size,), "int64"), "int64", axis=0, **how)
    assert_totals(emulator, "cumsum", numbers((1, size), "float32"), "float32", (1, N), {"n": size}, axis=1, **how)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes(emulator, axis):
    shape = tuple(np.roll((2, 3, TILE + 5), axis + 1).tolist())
    assert_totals(emulator, "cumsum", numbers(shape, "float32"), "float32", axis=axis)


@pytest.mark.parametrize("order", [LAST_FIRST, SEED])
def test_blocks_may_begin_in_any_order(emulator, monkeypatch, order):
    """More tiles than a group has; the sums of floats are the same to the last bit."""
    x = numbers((2, 70 * TILE), "float32")
    module = generate({"kernel": cumulative("cumsum", x.shape, "float32", axis=1)})
    (first,) = run_on(emulator, module, "kernel", [x])
    monkeypatch.setattr(emulator, "checks", Checks(tensors=True, order=order))
    (found,) = run_on(emulator, module, "kernel", [x])
    np.testing.assert_array_equal(found, first)
    np.testing.assert_allclose(found, np.cumsum(x.astype(np.float64), 1), rtol=1e-4)


def test_products_leave_no_range_that_the_running_one_stays_in(emulator):
    x = np.tile(np.array([1e30, 1e-30, 1e-30, 1e30], np.float32), 900)
    assert_totals(emulator, "cumprod", x, "float32", axis=0)


def test_rules():
    assert rules_of(cumulative("cumsum", (4, 32_000), "float32", axis=1)) == ["scan"]
    assert rules_of(cumulative("cumprod", (N,), "float32", axis=0)) == ["scan"]
    assert rules_of(cumulative("cumprod", (100,), "float64", axis=0)) == ["fallback"]
    assert rules_of(cumulative("cumsum", (100, 50_000), "float32", axis=0)) == ["fallback"]
    assert rules_of(cumulative("cumsum", (50_000, 4), "float32", axis=0)) == ["scan"]


@given(st.integers(0, 3 * TILE), st.sampled_from(["float32", "int16"]), st.booleans(), st.booleans())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_symbolic_sizes(emulator, size, dtype, exclusive, reverse):
    x, how = numbers((3, size), dtype), {"exclusive": exclusive, "reverse": reverse}
    assert_totals(emulator, "cumsum", x, dtype, (3, N), {"n": size}, axis=1, **how)


@pytest.mark.slow
def test_it_compiles_for_gpus():
    if not compiler_is_here():
        pytest.skip("neither nvcc nor NVRTC is installed")
    dtypes_ = [d for d in dtypes.DTYPES if d != "bool" and not d.startswith("float8")]
    functions = {f"{name} {d}": cumulative(name, (3, N), d, axis=1) for d in dtypes_ for name in ("cumsum", "cumprod")}
    module = generate({**functions, "short": cumulative("cumsum", (3, 100), "float32", axis=1)}, "sm_80")
    image = np.frombuffer(module.image.cubins["sm_80"], np.uint8)
    assert [kernel for kernel in module.image.kernels if elf.find_section(image, f".text.{kernel}") is None] == []
