"""DecomposeDataDependent: `nonzero` and `unique` run on kernels, and give what NumPy gives."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard import dims
from kernelyard.dims import Dim, symbol
from kernelyard.ir import Call, FunctionBuilder, IRModule, TensorType, TupleType, get_op, verify
from kernelyard.ops.interpreter import run
from kernelyard.transform.lowering.decompose_data_dependent import DecomposeDataDependent

COUNT = symbol("k") - 1
SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, 2.5]


def nonzero(shape: tuple[Dim, ...], dtype: str) -> IRModule:
    b = FunctionBuilder()
    type_ = TensorType((max(len(shape), 1), COUNT), "int64")
    return IRModule({"main": b.function(b.bind(Call(get_op("nonzero"), [b.input("x", shape, dtype)], type_=type_)))})


def unique(shape: tuple[Dim, ...], dtype: str, axis: int | None = None, is_sorted: bool = True) -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", shape, dtype)
    whole = dims.product(shape) if axis is None else shape[axis]
    values = (COUNT,) if axis is None else (*shape[:axis], COUNT, *shape[axis + 1 :])
    each = TensorType((COUNT,), "int64")
    type_ = TupleType((TensorType(values, dtype), each, TensorType((whole,), "int64"), each))
    found = b.bind(Call(get_op("unique"), [x], {"axis": axis, "sorted": is_sorted}, type_=type_))
    return IRModule({"main": b.function(*(b.get(found, number) for number in range(4)))})


def assert_kernels_agree(module: IRModule, x: np.ndarray) -> ky.Executable:
    """The host learns the size; kernels do all else, and give what the reference of the operator gives."""
    exe = compiled(module)
    assert_same(exe, module, x)
    return exe


def compiled(module: IRModule) -> ky.Executable:
    """One size of each function is learnt by the host; kernels do all else."""
    exe = ky.compile(module, backends=[])
    assert exe.report.coverage["host"]["ops"] == len(module.functions)
    assert "reference" not in exe.report.coverage
    assert "tensor_to_shape" in exe.inspect()
    return exe


def assert_same(exe: ky.Executable, module: IRModule, x: np.ndarray, name: str = "main") -> None:
    """A function gives what that of a module gives."""
    results = ky.VirtualMachine(exe)[name](x)
    found = results if isinstance(results, (tuple, list)) else (results,)
    for here, expected in zip(found, run(module, [x]), strict=True):
        np.testing.assert_array_equal(np.asarray(here), expected, strict=True)
        if expected.dtype.kind == "f":
            is_number = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(here)[is_number], np.signbit(expected)[is_number])


@pytest.mark.parametrize("shape", [(), (7,), (0,), (3, 5), (2, 3, 4), (4, 0, 2), (100_000,), (300, 41)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "int64"])
def test_places_of_what_is_not_zero(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(1)
    exe = assert_kernels_agree(nonzero(shape, dtype), rng.integers(0, 2, shape).astype(dtype))
    for value in (0, 1):
        assert_same(exe, nonzero(shape, dtype), np.full(shape, value, dtype))


def test_nan_is_not_zero() -> None:
    assert_kernels_agree(nonzero((7,), "float32"), np.array(SPECIAL, np.float32))


SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (40,), (7, 9), (100_000,)]


@cache
def unique_elements(dtype: str, is_sorted: bool) -> ky.Executable:
    """A function for each shape: kernels that sort share most of what is compiled."""
    modules = {f"elements_{number}": unique(shape, dtype, None, is_sorted) for number, shape in enumerate(SHAPES)}
    return compiled(IRModule({name: module["main"] for name, module in modules.items()}))


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float32", "float64", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_unique_elements(shape: tuple[int, ...], dtype: str, is_sorted: bool) -> None:
    x = np.random.default_rng(2).integers(0, 60, shape).astype(dtype)
    name = f"elements_{SHAPES.index(shape)}"
    assert_same(unique_elements(dtype, is_sorted), unique(shape, dtype, None, is_sorted), x, name)


SLICES: list[tuple[int, ...]] = [(50, 3, 2), (2, 50, 2), (2, 3, 50)]  # of 50 along the axis of their number


@cache
def unique_slices(dtype: str, is_sorted: bool) -> ky.Executable:
    """A function for each axis."""
    modules = {f"slices_{axis}": unique(shape, dtype, axis, is_sorted) for axis, shape in enumerate(SLICES)}
    return compiled(IRModule({name: module["main"] for name, module in modules.items()}))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_unique_slices(axis: int, dtype: str, is_sorted: bool) -> None:
    shape = SLICES[axis]
    x = np.random.default_rng(3).integers(0, 2, shape).astype(dtype)
    assert_same(unique_slices(dtype, is_sorted), unique(shape, dtype, axis, is_sorted), x, f"slices_{axis}")


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=40), st.booleans())
def test_special_numbers(values: list[float], is_sorted: bool) -> None:
    """One NaN equals another; of zeros of both signs the first stays."""
    x = np.array(values, np.float32)
    module = unique((symbol("n"),), "float32", None, is_sorted)
    for here, expected in zip(run(verify(DecomposeDataDependent()(module)), [x]), run(module, [x]), strict=True):
        np.testing.assert_array_equal(here, expected, strict=True)


def test_kernels_know_special_numbers() -> None:
    x = np.random.default_rng(4).choice(np.array(SPECIAL, np.float32), 5000)
    assert_kernels_agree(unique((5000,), "float32"), x)


def test_sizes_of_inputs_may_be_symbols_too() -> None:
    n, m = symbol("n"), symbol("m")
    flags, numbers = nonzero((n, m), "float32"), unique((n, m), "int32")
    of_flags, of_numbers = ky.compile(flags, backends=[]), ky.compile(numbers, backends=[])
    rng = np.random.default_rng(5)
    for shape in ((1, 1), (3, 7), (70, 33)):
        x = rng.integers(0, 3, shape)
        assert_same(of_flags, flags, x.astype(np.float32))
        assert_same(of_numbers, numbers, x.astype(np.int32))


def test_long_slices_stay_with_the_interpreter() -> None:
    module = unique((5, 40), "int32", 0)
    assert DecomposeDataDependent()(module) is module
    exe = ky.compile(module, backends=[])
    assert_same(exe, module, np.random.default_rng(6).integers(0, 2, (5, 40)).astype(np.int32))


@pytest.mark.parametrize("size", [1, 33, 5000])
def test_devices_compute_them_too(size: int) -> None:
    x = np.random.default_rng(7).integers(0, 9, size).astype(np.float32)
    for module in (nonzero((size,), "float32"), unique((size,), "float32")):
        exe = ky.compile(module, target="cuda", backends=[])
        assert exe.report.coverage["host"]["ops"] == 1
        results = ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](x)
        found = results if isinstance(results, (tuple, list)) else (results,)
        for here, expected in zip(found, run(module, [x]), strict=True):
            np.testing.assert_array_equal(here.numpy(), expected, strict=True)
