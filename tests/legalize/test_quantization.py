"""Quantization of 8 and 16 bits in 32-bit arithmetic: the reference's numbers, at the ends of the range too."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import legalize
from kernelyard.ir import TensorType, get_op
from kernelyard.tir import PrimFunc, print_primfunc
from kernelyard.tir.interpreter import evaluate

SHORT = ("int8", "uint8", "int16", "uint16")
SCALES = (0.1, 1.0, 3.7, 1e-6)


def rule(name: str, size: int, given: str, zero: str, result: str) -> PrimFunc:
    types = [TensorType((size,), given), TensorType((), "float32"), TensorType((), zero)]
    attrs = {"axis": None, "dtype": result}
    return legalize.legalize_call(name, types, attrs, TensorType((size,), result))


def numbers() -> np.ndarray:
    """Ties, neighbours of ties, the ends of each range, and numbers that 32 bits hold to some units alone."""
    whole = np.array(
        [0, 1, 2, 127, 128, 129, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**24 + 2, 2**31, 3e38, np.inf]
    )
    near = np.concatenate([whole, whole + 0.5, whole - 0.5, whole * (1 + 2e-7)])
    return np.unique(np.concatenate([near, -near])).astype(np.float32)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", SHORT)
def test_quantize(dtype, scale):
    limits = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        x = numbers() * np.float32(scale)
    function = rule("quantize", x.size, "float32", dtype, dtype)
    assert "64" not in print_primfunc(function)
    for zero in (limits.min, 0, 7, limits.max):
        operands = [x, np.asarray(scale, np.float32), np.asarray(zero, dtype)]
        with np.errstate(over="ignore"):
            expected = get_op("quantize").reference(*operands, axis=None, dtype=dtype)
        np.testing.assert_array_equal(evaluate(function, operands, {})[0], expected)


@pytest.mark.parametrize("dtype", SHORT)
def test_dequantize(dtype):
    limits = np.iinfo(dtype)
    x = np.unique(np.linspace(limits.min, limits.max, 300).astype(dtype))
    function = rule("dequantize", x.size, dtype, dtype, "float32")
    assert "64" not in print_primfunc(function)
    for zero in (limits.min, 0, limits.max):
        operands = [x, np.float32(0.3), np.asarray(zero, dtype)]
        expected = get_op("dequantize").reference(*operands, axis=None, dtype="float32")
        np.testing.assert_array_equal(evaluate(function, operands, {})[0], expected)


def test_zero_points_of_32_bits_are_exact():
    x, scale, zero = np.float32([3.5, -2e9]), np.float32(1), np.int32(2**31 - 1)
    for stored in ("int8", "int32"):
        function = rule("quantize", 2, "float32", "int32", stored)
        expected = get_op("quantize").reference(x, scale, zero, axis=None, dtype=stored)
        np.testing.assert_array_equal(evaluate(function, [x, scale, zero], {})[0], expected)
