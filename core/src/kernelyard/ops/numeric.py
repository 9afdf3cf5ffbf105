"""Numbers that NumPy lacks: narrow floats computed in float32, and the error function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelyard.dtypes import to_numpy

NARROW_FLOATS = tuple(to_numpy(name) for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"))


def compute_widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that narrow floats are computed in float32 and rounded once at the end."""

    @functools.wraps(function)
    def run(*arrays: np.ndarray, **attrs: Any) -> Any:
        narrow = next((a.dtype for a in arrays if a.dtype in NARROW_FLOATS), None)
        if narrow is None:
            return function(*arrays, **attrs)
        result = function(*(a.astype(np.float32) if a.dtype == narrow else a for a in arrays), **attrs)
        return tuple(_narrow(part, narrow) for part in result) if isinstance(result, tuple) else _narrow(result, narrow)

    return run


def _narrow(result: Any, dtype: np.dtype) -> np.ndarray:
    array = np.asarray(result)
    return array.astype(dtype) if array.dtype in (np.float32, np.float64) else array


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that every float is computed in float64 and rounded to the first operand's dtype at the end.

    For statistics over many elements, so that the reference's own rounding stays out of comparisons.
    """

    @functools.wraps(function)
    def run(*arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        wide = (
            a.astype(np.float64) if np.issubdtype(a.dtype, np.floating) or a.dtype in NARROW_FLOATS else a
            for a in arrays
        )
        return np.asarray(function(*wide, **attrs)).astype(arrays[0].dtype)

    return run


# The error function by Taylor expansion around the nearest multiple of 1/16: |h| <= 1/32, so that the first term left
# out is below 1e-17. Beyond 6 it is 1 in float64. The centres' values come from the C library.
_CELLS_PER_UNIT = 16
_LIMIT = 6.0
_TERMS = 9


@functools.cache
def _erf_coefficients() -> np.ndarray:
    """Taylor coefficients of erf at every centre, one row per power."""
    centres = np.arange(int(_LIMIT) * _CELLS_PER_UNIT + 1) / _CELLS_PER_UNIT
    # g(h) = exp(-(c + h)^2) satisfies g' = -2 (c + h) g, hence (n + 1) g[n+1] = -2 (c g[n] + g[n-1]).
    gaussian = [np.exp(-centres * centres)]
    gaussian.append(-2 * centres * gaussian[0])
    for n in range(1, _TERMS - 1):
        gaussian.append(-2 * (centres * gaussian[n] + gaussian[n - 1]) / (n + 1))
    constant = np.array([math.erf(c) for c in centres])
    scale = 2 / math.sqrt(math.pi)
    return np.stack([constant, *(scale * g / (n + 1) for n, g in enumerate(gaussian))])


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function, exact to about one unit in the last place of float64; keeps the dtype.

    Example:
        >>> float(erf(np.array(0.5)).round(6))
        0.5205
    """
    wide = np.asarray(x, np.float64)
    size = np.minimum(np.abs(wide), _LIMIT)
    cell = np.rint(np.nan_to_num(size) * _CELLS_PER_UNIT).astype(np.intp)
    offset = size - cell / _CELLS_PER_UNIT
    coefficients = _erf_coefficients()
    result = np.zeros_like(size)
    for row in coefficients[::-1]:
        result = result * offset + row[cell]
    return np.copysign(result, wide).astype(np.asarray(x).dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))
