"""Running sums and products: against NumPy, along any axis, and which loops they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims, dtypes, legalize
from kernelyard.ir import TensorType, get_op
from kernelyard.tir import PrimFunc
from kernelyard_native_cpu.codegen.scans import ROWS_AT_ONCE
from kernelyard_native_cpu.machine import resolve_machine
from kernelyard_native_cpu.runtime import NativeCpuModule
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules import make_plan

from .conftest import compile_one, run_module

TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def cumulative(name: str, shape: dims.Shape, dtype: str, **attributes: Any) -> PrimFunc:
    op, type_ = get_op(name), TensorType(shape, dtype)
    attrs = op.check_attributes(attributes)
    return legalize.legalize_call(name, [type_], attrs, op.infer_type([type_], attrs))


def plan_of(function: PrimFunc) -> Plan:
    (group,) = make_groups(function)
    return make_plan(group.stages[0], frozenset(), {}, resolve_machine("x86-64-v3"))


def assert_totals(
    module: NativeCpuModule, name: str, x: np.ndarray, dtype: str, symbols=None, threads: int = 1, **attributes: Any
) -> None:
    (found,) = run_module(module, "kernel", [x], symbols, threads)
    op = get_op(name)
    assert op.reference is not None
    wanted = op.reference(x, **op.check_attributes(attributes))
    tolerance = TOLERANCES.get(dtype, 0)
    if not tolerance:
        np.testing.assert_array_equal(found, wanted)
        return
    scale = np.abs(wanted.astype(np.float64)).max(initial=1)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=scale * tolerance
    )


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).uniform(-1.5, 1.5, shape) + 0.1
    return (found if dtypes.is_float(dtype) else found * 4).astype(dtypes.to_numpy(dtype))


def test_lanes_lie_along_the_scanned_axis_where_that_is_last():
    plan = plan_of(cumulative("cumsum", (3, 100), "float32", axis=1))
    assert plan.scan is not None
    assert (plan.vector, plan.scan.lanes) == (None, 8)


def test_lanes_lie_along_another_axis_otherwise():
    plan = plan_of(cumulative("cumprod", (3, 100, 33), "float32", axis=1))
    assert plan.scan is not None
    assert (plan.vector, plan.lanes, plan.scan.lanes) == ("s1", 8, 1)


def test_rows_are_added_where_another_axis_is_long():
    plan = plan_of(cumulative("cumsum", (100, 1000), "float32", axis=0))
    assert plan.scan is not None
    assert (plan.vector, plan.lanes, plan.unroll, plan.scan.row) == ("s0", 8, 1, 125)


@pytest.mark.parametrize("mcpu", [None, "x86-64-v2"])
@pytest.mark.parametrize("width", [65, 1000, 2500])
@pytest.mark.parametrize("length", [1, 2, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE])
def test_rows_of_any_length(mcpu, width, length):
    for name, how in (("cumsum", {}), ("cumprod", {"reverse": True}), ("cumsum", {"exclusive": True})):
        x = numbers((2, length, width), "float32")
        module = compile_one(cumulative(name, x.shape, "float32", axis=1, **how), mcpu)
        assert_totals(module, name, x, "float32", threads=2, axis=1, **how)


def test_a_product_of_floats_is_made_in_order():
    """Products of neighbours alone would be zero here."""
    function = cumulative("cumprod", (40,), "float32", axis=0)
    plan = plan_of(function)
    assert plan.scan is not None
    assert plan.scan.lanes == 1
    x = np.tile(np.array([1e30, 1e-30, 1e-30, 1e30], np.float32), 10)
    (found,) = run_module(compile_one(function), "kernel", [x])
    np.testing.assert_allclose(found, np.cumprod(x.astype(np.float64)), rtol=1e-5)


def test_sums_of_negative_zeros_are_negative():
    function = cumulative("cumsum", (40,), "float32", axis=0)
    plan = plan_of(function)
    assert plan.scan is not None
    assert plan.scan.lanes > 1
    (found,) = run_module(compile_one(function), "kernel", [np.full(40, -0.0, np.float32)])
    assert np.signbit(found).all()


@pytest.mark.parametrize("mcpu", [None, "x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [d for d in dtypes.DTYPES if d != "bool" and not d.startswith("float8")])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_dtypes(name, dtype, mcpu):
    for axis, how in ((0, {}), (1, {"exclusive": True}), (1, {"reverse": True})):
        x = numbers((3, 77) if axis else (20, 37), dtype)
        function = cumulative(name, x.shape, dtype, axis=axis, **how)
        assert_totals(compile_one(function, mcpu), name, x, dtype, axis=axis, **how)


@pytest.fixture(scope="module")
def compiled() -> dict[object, NativeCpuModule]:
    return {}


@given(st.data())
@settings(max_examples=60)
def test_symbolic_sizes(compiled, data):
    name, dtype = data.draw(st.sampled_from(["cumsum", "cumprod"])), data.draw(st.sampled_from(["float32", "int64"]))
    axis, exclusive, reverse = data.draw(st.integers(0, 2)), data.draw(st.booleans()), data.draw(st.booleans())
    how = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    sizes = [data.draw(st.integers(0, 4)), data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))]
    shape = tuple(dims.symbol(letter) for letter in "abc")
    mcpu = data.draw(st.sampled_from([None, "x86-64-v3"]))
    key = (name, dtype, mcpu, *how.values())
    if key not in compiled:
        compiled[key] = compile_one(cumulative(name, shape, dtype, **how), mcpu)
    x = numbers(tuple(sizes), dtype, sum(sizes))
    threads = data.draw(st.sampled_from([1, 3]))
    assert_totals(compiled[key], name, x, dtype, dict(zip("abc", sizes, strict=True)), threads, **how)
