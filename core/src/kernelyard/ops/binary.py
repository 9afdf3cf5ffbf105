"""Elementwise operators of two operands with NumPy's broadcasting, and `where`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from kernelyard.errors import TypeInferenceError
from kernelyard.ir.op import Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, no_flops
from kernelyard.ops.samples import booleans, draw_numbers, floats, integers
from kernelyard.ops.type_rules import (
    ANY,
    BOOL,
    INTEGERS,
    NUMBERS,
    broadcast_shapes,
    elementwise,
    require_dtype,
    require_same_dtype,
)


def _is_integer(x: np.ndarray) -> bool:
    return np.issubdtype(x.dtype, np.integer)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not _is_integer(a):
        return a / b
    # fmod takes the dividend's sign, so that what is left divides exactly and floor division truncates.
    return (a - np.fmod(a, b)) // b


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not _is_integer(a):
        return np.power(a, b)
    a, b = np.broadcast_arrays(a, b)
    positive = np.power(a, np.maximum(b, 0))
    # a ** -k is 1 / a ** k rounded towards zero: nonzero for 1 and -1 alone.
    reciprocal = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(a.dtype)
    return np.where(b < 0, reciprocal, positive)


# name: (reference, operand dtypes, commutative, what it computes)
BinaryRow = tuple[Callable[..., np.ndarray], Sequence[str], bool, str]
ARITHMETIC: dict[str, BinaryRow] = {
    "add": (np.add, NUMBERS, True, "a + b"),
    "subtract": (np.subtract, NUMBERS, False, "a - b"),
    "multiply": (np.multiply, NUMBERS, True, "a * b"),
    "divide": (_divide, NUMBERS, False, "a / b; integers are truncated towards zero"),
    "power": (_power, NUMBERS, False, "a to the power b"),
    "maximum": (np.maximum, NUMBERS, True, "the larger one; NaN when either is NaN"),
    "minimum": (np.minimum, NUMBERS, True, "the smaller one; NaN when either is NaN"),
    "mod": (np.mod, NUMBERS, False, "the remainder with the divisor's sign"),
    "fmod": (np.fmod, NUMBERS, False, "the remainder with the dividend's sign"),
    "bitwise_and": (np.bitwise_and, INTEGERS, True, "a & b"),
    "bitwise_or": (np.bitwise_or, INTEGERS, True, "a | b"),
    "bitwise_xor": (np.bitwise_xor, INTEGERS, True, "a ^ b"),
    "left_shift": (np.left_shift, INTEGERS, False, "a << b"),
    "right_shift": (np.right_shift, INTEGERS, False, "a >> b; arithmetic for signed integers"),
    "logical_and": (np.logical_and, BOOL, True, "a and b"),
    "logical_or": (np.logical_or, BOOL, True, "a or b"),
    "logical_xor": (np.logical_xor, BOOL, True, "either, but not both"),
}
COMPARISONS: dict[str, BinaryRow] = {
    "equal": (np.equal, ANY, True, "a == b"),
    "not_equal": (np.not_equal, ANY, True, "a != b"),
    "less": (np.less, NUMBERS, False, "a < b"),
    "less_equal": (np.less_equal, NUMBERS, False, "a <= b"),
    "greater": (np.greater, NUMBERS, False, "a > b"),
    "greater_equal": (np.greater_equal, NUMBERS, False, "a >= b"),
}
POSITIVE_RIGHT = ("divide", "mod", "fmod", "left_shift", "right_shift")
POSITIVE_LEFT = ("power",)
BROADCASTS = (
    ((3, 5), (3, 5), "same shape"),
    ((2, 3, 5), (5,), "row"),
    ((2, 3, 4, 5), (3, 1, 1), "channel"),
    ((4, 1), (1, 7), "both broadcast"),
    ((), (3,), "rank 0 on the left"),
    ((2, 3), (), "rank 0 on the right"),
    ((), (), "rank 0"),
)


def _operand(shape: tuple[int, ...], dtype: str, positive: bool, seed: int) -> np.ndarray:
    if not positive:
        return draw_numbers(*shape, dtype=dtype, seed=seed)
    if "int" in dtype:
        return integers(*shape, dtype=dtype, low=1, high=5, seed=seed)
    return floats(*shape, dtype=dtype, low=0.2, high=3, seed=seed)


def _samples(name: str, allowed: Sequence[str]) -> Iterator[Sample]:
    main = "float32" if "float32" in allowed else "int32" if "int32" in allowed else "bool"

    def sample(left: tuple[int, ...], right: tuple[int, ...], dtype: str, label: str) -> Sample:
        a = _operand(left, dtype, name in POSITIVE_LEFT, 0)
        return Sample((a, _operand(right, dtype, name in POSITIVE_RIGHT, 1)), label=label)

    for left, right, label in BROADCASTS:
        yield sample(left, right, main, label)
    for dtype in ("float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool"):
        if dtype in allowed and dtype != main:
            yield sample((2, 7), (7,), dtype, dtype)


def _integer_samples(name: str, allowed: Sequence[str]) -> Iterator[Sample]:
    yield from _samples(name, allowed)
    if name in ("divide", "mod", "fmod"):
        signs = np.array([7, -7, 7, -7, 6, 0], np.int64), np.array([2, 2, -2, -2, -3, -3], np.int64)
        yield Sample(signs, label="all signs")
        yield Sample(tuple(a.astype(np.float32) for a in signs), label="all signs, float32")


for _name, (_reference, _allowed, _commutative, _summary) in ARITHMETIC.items():
    declare(
        _name,
        ("a", "b"),
        elementwise(_allowed),
        _reference,
        samples=partial(_integer_samples, _name, _allowed),
        commutative=_commutative,
        widen="float32" in _allowed,
        summary=_summary,
    )
for _name, (_reference, _allowed, _commutative, _summary) in COMPARISONS.items():
    declare(
        _name,
        ("a", "b"),
        elementwise(_allowed, "bool"),
        _reference,
        samples=partial(_samples, _name, _allowed),
        commutative=_commutative,
        summary=_summary,
    )


# --- where ------------------------------------------------------------------------------------------------------------
def _where_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    condition, x, y = types
    require_dtype(condition, BOOL, "the condition")
    try:
        dtype = require_same_dtype((x, y))
    except TypeInferenceError as error:
        raise TypeInferenceError("both choices must have the same dtype", found=error.found, hint=error.hint) from error
    return TensorType(broadcast_shapes(condition.shape, x.shape, y.shape), dtype)


def _where_samples() -> Iterator[Sample]:
    yield Sample((booleans(3, 5), floats(3, 5), floats(3, 5, seed=1)), label="same shape")
    yield Sample((booleans(3, 1), floats(5), floats(seed=1)), label="broadcast")
    yield Sample((booleans(), floats(2, 3), floats(2, 3, seed=1)), label="rank 0 condition")
    for dtype in ("int64", "bool", "float16"):
        yield Sample(
            (booleans(2, 7), draw_numbers(2, 7, dtype=dtype), draw_numbers(7, dtype=dtype, seed=1)), label=dtype
        )


declare(
    "where",
    ("condition", "x", "y"),
    _where_type,
    np.where,
    samples=_where_samples,
    flops=no_flops,
    summary="x where the condition holds, else y",
)
