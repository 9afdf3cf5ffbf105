"""Element types: every code of the small floats, rounding, and conversions."""

from __future__ import annotations

import re

import ml_dtypes  # noqa: F401  (gives NumPy the small floats)
import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.ir import TensorType, get_op
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import cast, maximum, minimum
from kernelyard_native_cpu.generator import write_module
from kernelyard_native_cpu.machine import resolve_machine

SMALL = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
MACHINES = (None, "x86-64-v3", "x86-64")


def conversion(source: str, target: str, count: int):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((count,), source))
    return b.finish((b.compute((count,), lambda i: cast(x[i], target)),))


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of signalling NaN
        a, b = a.astype(np.float64), b.astype(np.float64)
    return (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))


def every_code(dtype: str) -> np.ndarray:
    bits = 8 * dtypes.itemsize(dtype)
    return np.arange(1 << bits, dtype=np.uint16).astype(f"uint{bits}").view(dtypes.to_numpy(dtype))


@pytest.mark.parametrize("mcpu", MACHINES)
@pytest.mark.parametrize("dtype", SMALL)
def test_every_code_is_read(run, dtype, mcpu):
    codes = every_code(dtype)
    found = run(conversion(dtype, "float32", len(codes)), codes, mcpu=mcpu)[0]
    assert same(found, codes).all()


@pytest.mark.parametrize("mcpu", MACHINES)
@pytest.mark.parametrize("dtype", SMALL)
def test_floats_round_to_nearest_even(run, dtype, mcpu):
    rng = np.random.default_rng(1)
    with np.errstate(invalid="ignore"):
        codes = every_code(dtype).astype(np.float32)
    finite = np.sort(codes[np.isfinite(codes)])
    halfway = finite[1:] / 2 + finite[:-1] / 2
    rounding_up = np.nextafter(halfway, np.float32(np.inf))
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 480, 57344, 61440, 65504, 65519, 65520, 1e-45, 3e38]
    values = np.concatenate([halfway, rounding_up, special, rng.standard_normal(1000) * 10]).astype(np.float32)
    found = run(conversion("float32", dtype, len(values)), values, mcpu=mcpu)[0]
    with np.errstate(all="ignore"):
        wanted = values.astype(dtypes.to_numpy(dtype))
    wrong = ~same(found, wanted)
    assert not wrong.any(), (values[wrong][:5], found[wrong][:5], wanted[wrong][:5])


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("source", ["float32", "float64", "bool", *INTEGERS])
@pytest.mark.parametrize("target", ["float32", "float64", "bool", *INTEGERS])
def test_conversions(run, source, target):
    values = np.array([0, 1, 2, 3, 100, 127, 5, 7, 9, 11, 13, 17, 19, 64, 1, 0, 50], dtypes.to_numpy(source))
    if source in dtypes.SIGNED or source.startswith("float"):
        values = values * np.array([1, -1] * 8 + [1], values.dtype)
    if target in dtypes.UNSIGNED and source.startswith("float"):
        values = np.abs(values)
    if source.startswith("float"):
        values = values + np.array(0.25, values.dtype)
    found = run(conversion(source, target, len(values)), values)[0]
    np.testing.assert_array_equal(found, values.astype(target))


def test_integers_keep_all_their_bits(run):
    values = np.array([2**63 - 1, -(2**63), 2**53 + 1, -1], np.int64)
    for target in ("int32", "uint32", "int8", "uint64"):
        np.testing.assert_array_equal(run(conversion("int64", target, 4), values)[0], values.astype(target))


def test_nan_becomes_zero_and_large_floats_saturate(run):
    values = np.array([np.nan, 1e30, -1e30, np.inf], np.float32)
    assert run(conversion("float32", "int32", 4), values)[0].tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1]


@pytest.mark.parametrize("source", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_that_an_integer_does_not_hold_are_converted_as_constants_are(run, source, target):
    """In a kernel, by the operator's reference, and where a constant is folded."""
    special = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9, 2.0**31, -(2.0**31), 2.0**63, 300.7, -1.5, -0.0, 1e-40]
    with np.errstate(over="ignore"):
        values = np.array(special).astype(dtypes.to_numpy(source))
    found = run(conversion(source, target, len(values)), values)[0]
    np.testing.assert_array_equal(found, dtypes.convert(values, target))
    np.testing.assert_array_equal(found, get_op("astype").reference(values, dtype=target))


def clipped(source: str, target: str, count: int, low: float, high: float):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((count,), source))
    return b.finish((b.compute((count,), lambda i: cast(minimum(maximum(x[i], low), high), target)),))


# x86-64-v3 compares with a NaN, and with what int32 does not hold, by these.
CHECKS = re.compile(r"fcmp (uno|oge)")


@pytest.mark.parametrize("mcpu", MACHINES)
@pytest.mark.parametrize("source", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("target", "low", "high"),
    [("uint8", 0, 255), ("uint8", 0, 77), ("int8", -128, 127), ("int16", -300, 0), ("uint16", 0, 60000)],
)
def test_clipped_floats_are_not_clipped_again(run, source, target, low, high, mcpu):
    special = [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 254.9, 255.5, -0.5, -0.0, 1e-40, 127.9]
    with np.errstate(over="ignore"):
        values = np.array([*special, *range(-5, 90)]).astype(dtypes.to_numpy(source))
    kernel = clipped(source, target, len(values), low, high)
    checks = CHECKS.findall(write_module({"kernel": kernel}, resolve_machine("x86-64-v3"))[1])
    assert set(checks) == ({"uno"} if low < 0 else set())
    found = run(kernel, values, mcpu=mcpu)[0]
    np.testing.assert_array_equal(found, dtypes.convert(np.clip(values, low, high), target))


def test_floats_clipped_beyond_an_integer_wrap(run):
    values = np.array([np.nan, -1.0, 255.0, 256.0, 300.0], np.float32)
    found = run(clipped("float32", "uint8", len(values), -1, 300), values)[0]
    np.testing.assert_array_equal(found, dtypes.convert(values, "uint8"))
