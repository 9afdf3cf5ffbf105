"""Data of int8 as uint8: what is stored otherwise, with the same numbers, and what stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_checker import Checker

from kernelyard.ir import Expr, Function, FunctionBuilder, Var
from kernelyard.transform import StoreUnsigned

SCALE, ZERO = np.array(0.05, np.float32), -128
SHAPE = (2, 3, 4, 4)


def store(b: FunctionBuilder, x: Expr, zero: int = ZERO) -> Var:
    return b.op("quantize", x, SCALE, np.array(zero, np.int8), dtype="int8")


def read(b: FunctionBuilder, x: Expr, zero: int = ZERO) -> Var:
    return b.op("dequantize", x, SCALE, np.array(zero, np.int8))


def dtypes(function: Function) -> list[str]:
    """Dtypes of what is stored between the first operator and the last."""
    return [str(binding.var.tensor_type.dtype) for binding in function.bindings][:-1]


MOVES: dict[str, Callable[[FunctionBuilder, Expr], Expr]] = {
    "nothing": lambda b, x: x,
    "reshape": lambda b, x: b.op("reshape", x, shape=(2, 48)),
    "pool": lambda b, x: b.op("nn.max_pool2d", x, pool_size=(2, 2), padding=(1, 0, 0, 1)),
    "concat": lambda b, x: b.op("concat", x, b.op("flip", x, axes=(1,)), axis=1),
    "pad": lambda b, x: b.op("pad", x, pads=(0, 0, 1, 2, 0, 0, 1, 0), value=-7.0),
    "pad by its edge": lambda b, x: b.op("pad", x, pads=(0, 0, 1, 2, 0, 0, 1, 0), mode="edge"),
    "largest": lambda b, x: b.op("max", x, axes=(2, 3), keepdims=True),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("zero", [-128, -3, 127])
def test_moved_data_is_stored_in_uint8(check: Checker, move: str, zero: int) -> None:
    function = check.of(lambda b, x: read(b, MOVES[move](b, store(b, x, zero)), zero), SHAPE)
    after = check(StoreUnsigned(), function)
    assert set(dtypes(after)) == {"uint8"}
    assert check.ops(after) == check.ops(function)


def test_zero_points_of_channels_are_shifted(check: Checker) -> None:
    scales, zeros = np.array([0.1, 0.2, 0.3], np.float32), np.array([-128, 0, 5], np.int8)

    def build(b: FunctionBuilder, x: Var) -> Expr:
        stored = b.op("quantize", x, scales, zeros, axis=1, dtype="int8")
        return b.op("dequantize", stored, scales, zeros, axis=1)

    assert dtypes(check(StoreUnsigned(), check.of(build, SHAPE))) == ["uint8"]


def returned(b: FunctionBuilder, x: Expr) -> Expr:
    stored = store(b, x)
    return b.tuple(read(b, stored), stored)


def computed_with(b: FunctionBuilder, x: Expr) -> Expr:
    stored = store(b, x)
    return b.op("add", read(b, stored), b.op("astype", stored, dtype="float32"))


def indices(b: FunctionBuilder, x: Expr) -> Expr:
    """Stored numbers that say where to read other stored numbers."""
    table = b.op("reshape", b.op("clip", x, min=0.0, max=0.2), shape=(96,))
    places = store(b, table, zero=0)
    return read(b, b.op("take", store(b, table), places, axis=0))


def moved_and_returned(b: FunctionBuilder, x: Expr) -> Expr:
    moved = b.op("reshape", store(b, x), shape=(96,))
    return b.tuple(read(b, moved), b.op("flip", moved, axes=(0,)))


def joined_with_a_parameter(b: FunctionBuilder, x: Expr) -> Expr:
    return read(b, b.op("concat", store(b, x), b.input("stored", SHAPE, "int8"), axis=1))


def around_a_wide_zero(b: FunctionBuilder, x: Expr) -> Expr:
    """A zero point that int8 does not hold, of its own dtype."""
    wide = np.array(-200, np.int32)
    return b.op("dequantize", b.op("quantize", x, SCALE, wide, dtype="int8"), SCALE, wide)


def read_around_another_dtype(b: FunctionBuilder, x: Expr) -> Expr:
    return b.op("dequantize", store(b, x), SCALE, np.array(ZERO, np.int32))


STAYS = {
    "around 0": lambda b, x: read(b, store(b, x, 0), 0),
    "returned": returned,
    "computed with": computed_with,
    "moved and returned": moved_and_returned,
    "joined with a parameter": joined_with_a_parameter,
    "around a wide zero point": around_a_wide_zero,
    "read around a zero point of another dtype": read_around_another_dtype,
}


@pytest.mark.parametrize("case", STAYS)
def test_what_others_read_stays(check: Checker, case: str) -> None:
    function = check.of(STAYS[case], SHAPE)
    assert check(StoreUnsigned(), function) is function


def test_indices_stay(check: Checker) -> None:
    after = check(StoreUnsigned(), check.of(indices, SHAPE))
    stored = [b.var.tensor_type.dtype for b in after.bindings if b.var.tensor_type.dtype != "float32"]
    assert stored == ["int8", "uint8", "uint8"]


def test_all_data_of_a_function_is_stored_alike(check: Checker) -> None:
    """Sums of int8 and uint8 are no kernel of any library: what lies around 0 goes with the others."""

    def build(b: FunctionBuilder, x: Var) -> Expr:
        return b.op("add", read(b, store(b, x, 0), 0), read(b, store(b, x)))

    assert dtypes(check(StoreUnsigned(), check.of(build, SHAPE))).count("uint8") == 2


def test_data_of_uint8_keeps_a_zero_point_of_int8(check: Checker) -> None:
    """It is none of those that are stored otherwise."""

    def build(b: FunctionBuilder, x: Var) -> Expr:
        other = b.op("dequantize", b.op("quantize", x, SCALE, np.uint8(0), dtype="uint8"), SCALE, np.int8(3))
        return b.op("add", read(b, store(b, x)), other)

    assert dtypes(check(StoreUnsigned(), check.of(build, SHAPE))).count("uint8") == 2
