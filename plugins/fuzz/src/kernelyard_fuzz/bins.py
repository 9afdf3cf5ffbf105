"""Bins: sizes and attributes at which compilers go wrong, and arrays of numbers in a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.ir.op import Attribute
from kernelyard_fuzz.chooser import Chooser

# 1, around powers of two, odd, prime: where vectors and tiles have remainders, or are alone.
SMALL_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17)
LARGE_SIZES = (31, 32, 33, 37, 63, 64, 65, 127, 128, 129, 257)
BEYOND_CACHE = 20_000  # elements of float32 that a first-level cache does not hold
LARGEST = 1 << 17  # elements of one tensor


class Interval(NamedTuple):
    """Bound the elements of an operand."""

    low: float
    high: float

    def holds(self, array: np.ndarray) -> bool:
        """Return True when every element lies inside."""
        return array.size == 0 or bool(self.low <= array.min() and array.max() <= self.high)


def interval_of(array: np.ndarray) -> Interval:
    """Return the least interval around the elements; floats on both sides of 0 may be somewhat larger."""
    if array.size == 0 or array.dtype == bool:
        return Interval(0, 1)
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind not in "iu" and low < -1 and high > 1:
        return Interval(min(low, -4.0), max(high, 4.0))
    return Interval(low, high)


def size(chooser: Chooser, others: int, may_be_large: bool = True) -> int:
    """Return a size of an axis, beside axes with so many elements together."""
    if others == 0 or chooser.chance(3):
        return 0 if chooser.chance(30) else chooser.pick(SMALL_SIZES)
    if others <= 64 and may_be_large and chooser.chance(2):
        return BEYOND_CACHE // others
    sizes = LARGE_SIZES if others <= 512 and chooser.chance(20) else SMALL_SIZES
    return chooser.pick(sizes)


def around(size: int) -> tuple[int, ...]:
    """Return sizes near another one, and its double."""
    return (max(size - 1, 1), size + 1, 2 * size, 2 * size + 1)


def array_in(chooser: Chooser, shape: tuple[int, ...], dtype: str, interval: Interval) -> np.ndarray:
    """Return an array with elements in an interval: random, of few values, all alike, or at the ends."""
    random = np.random.default_rng(chooser.below(1 << 16))
    target = dtypes.to_numpy(dtype)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if not dtypes.is_float(dtype):
        made = random.integers(int(interval.low), int(interval.high), shape, endpoint=True)
        ends = random.random(shape) < (0.3 if chooser.chance(15) else 0.0)
        return np.where(ends, random.choice([int(interval.low), int(interval.high)], shape), made).astype(target)
    kind = chooser.below(20)
    if kind == 19:
        return np.full(shape, interval.low + (interval.high - interval.low) * random.random(), target)
    if kind in (16, 17):  # equal ones, and halves
        step = chooser.pick((0.25, 0.5, 1.0))
        made = np.clip(np.rint(random.uniform(interval.low, interval.high, shape) / step) * step, *interval)
        return made.astype(target)
    if kind == 18:
        return random.choice([interval.low, interval.high, (interval.low + interval.high) / 2], shape).astype(target)
    return random.uniform(interval.low, interval.high, shape).astype(target)


# --- attributes -------------------------------------------------------------------------------------------------------
def _int(chooser: Chooser, value: int) -> int:
    return chooser.pick((value + 1, value - 1, -value, 0, 1, 2, -1))


def _float(chooser: Chooser, value: float) -> float:
    return chooser.pick((value * 2, value / 2, -value, 0.0, 1.0, value + 0.5))


def _tuple(change: Callable[[Chooser, Any], Any]) -> Callable[[Chooser, Any], Any]:
    def change_tuple(chooser: Chooser, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            return value
        kind, index = chooser.below(6), chooser.below(len(value))
        if kind > 3:
            return tuple(change(chooser, one) if chooser.chance(50) else one for one in value)
        if kind == 3:
            return tuple(reversed(value))
        if kind == 2:
            return (change(chooser, value[0]),) * len(value)
        return (*value[:index], change(chooser, value[index]), *value[index + 1 :])

    return change_tuple


_CHANGES: dict[str, Callable[[Chooser, Any], Any]] = {
    "bool": lambda chooser, value: not value,
    "int": _int,
    "dim": _int,
    "float": _float,
    "dtype": lambda chooser, value: chooser.pick(dtypes.DTYPES),
    "ints": _tuple(_int),
    "dims": _tuple(_int),
    "floats": _tuple(_float),
}


def change_attribute(chooser: Chooser, attribute: Attribute, value: Any) -> Any:
    """Return a value near another one of an attribute; it may be one that the operator refuses."""
    if value is None or isinstance(value, bool) != (attribute.kind == "bool"):
        return value
    if attribute.choices:
        return chooser.pick(attribute.choices)
    change = _CHANGES.get(attribute.kind)
    return value if change is None else change(chooser, value)
