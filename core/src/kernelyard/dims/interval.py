"""Bounds of dims, from those of their symbols, by interval arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, TypeAlias

from kernelyard.dims.expression import Atom, Bounds, Dim, Function, Symbol
from kernelyard.errors import OptionError

Interval: TypeAlias = "tuple[float, float]"  # ints, and infinities where it is open


def bounds_of(dim: Dim, symbols: Mapping[str, Bounds]) -> Bounds:
    """Return the least and the largest value that a size may have; None for the largest where it is open.

    symbols: bounds of symbols; those that have none are at least 1. The interval holds every value, and may hold more:
    places where a symbol occurs twice are taken to be independent. Sizes are never negative.

    Example:
        >>> from kernelyard.dims import parse
        >>> bounds_of(parse("n * 4 + 1"), {"n": (1, 8)}), bounds_of(parse("n + m"), {"n": (1, 8)}), bounds_of(7, {})
        ((5, 33), (2, None), (7, 7))
    """
    low, high = _of_dim(dim, symbols)
    return int(max(low, 0)), None if high == math.inf else int(max(high, 0))


def check_bounds(bounds: Any) -> dict[str, Bounds]:
    """Return bounds of symbols as they are kept; none for None.

    Raises: OptionError.

    Example:
        >>> check_bounds({"n": (1, 512)})
        {'n': (1, 512)}
    """
    if bounds is not None and not isinstance(bounds, Mapping):
        raise OptionError("bounds must be a dictionary", found=repr(bounds), expected='{"n": (1, 512)}')
    return {name: _pair(name, pair) for name, pair in (bounds or {}).items()}


def _pair(name: object, pair: Any) -> Bounds:
    if isinstance(name, str) and isinstance(pair, (tuple, list)) and len(pair) == 2:
        low, high = pair
        if _is_size(low) and (high is None or (_is_size(high) and low <= high)):
            return low, high
    raise OptionError(
        f"the bounds of {name!r} are none", found=repr(pair), expected="(least, largest or None), such as (1, 512)"
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _of_dim(dim: Dim, symbols: Mapping[str, Bounds]) -> Interval:
    if isinstance(dim, int):
        return dim, dim
    terms = [
        reduce(_times, [_of_atom(atom, symbols) for atom in monomial], (factor, factor))
        for monomial, factor in dim.terms
    ]
    return reduce(_plus, terms)


def _of_atom(atom: Atom, symbols: Mapping[str, Bounds]) -> Interval:
    if isinstance(atom, Symbol):
        low, high = symbols.get(atom.name, (1, None))
        return max(low, 1), math.inf if high is None else high
    return _of_function(atom, _of_dim(atom.left, symbols), _of_dim(atom.right, symbols))


def _of_function(function: Function, left: Interval, right: Interval) -> Interval:
    if function.name == "floordiv":  # by what is taken to be positive
        divisors = max(right[0], 1), max(right[1], 1)
        return _hull(_quotient(a, b) for a in left for b in divisors)
    if function.name == "max":
        return max(left[0], right[0]), max(left[1], right[1])
    if function.name == "min":
        return min(left[0], right[0]), min(left[1], right[1])
    return min(left[0], right[0]), max(left[1], right[1])  # a broadcast is one of the two


def _plus(left: Interval, right: Interval) -> Interval:
    (low, high), (other_low, other_high) = left, right
    return _sum(low, other_low), _sum(high, other_high)


def _sum(a: float, b: float) -> float:
    """Add without making a float of a large int; infinities of both signs do not meet."""
    if _are_finite(a, b):
        return a + b
    return b if _are_finite(a) else a


def _times(left: Interval, right: Interval) -> Interval:
    return _hull(_product(a, b) for a in left for b in right)


def _product(a: float, b: float) -> float:
    if _are_finite(a, b) or a == 0 or b == 0:
        return a * b if _are_finite(a, b) else 0
    return math.inf if (a > 0) == (b > 0) else -math.inf


def _quotient(a: float, b: float) -> float:
    if math.inf in (a, -a):
        return a
    if b == math.inf:
        return 0 if a >= 0 else -1
    return a // b


def _are_finite(*values: float) -> bool:
    return all(math.inf not in (value, -value) for value in values)


def _hull(values: Iterable[float]) -> Interval:
    found = list(values)
    return min(found), max(found)
