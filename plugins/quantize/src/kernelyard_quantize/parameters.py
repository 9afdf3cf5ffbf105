"""Scales and zero points: real = (stored - zero point) * scale."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelyard.dtypes import to_numpy

LARGEST_BIAS = 2**31 - 128  # the largest float32 below the end of int32
LARGEST_WEIGHT = 127  # -128 stays unused: weights are symmetric, and pairs of products fit 16 bits more often


class Range(NamedTuple):
    """The least and the largest number of a value."""

    low: float
    high: float


class Parameters(NamedTuple):
    """A scale (float32) and a zero point (of the stored dtype), each a number."""

    scale: np.ndarray
    zero: np.ndarray

    @property
    def dtype(self) -> str:
        """The dtype that values are stored in."""
        return self.zero.dtype.name


def parameters_of(values: Range, dtype: str, symmetric: bool) -> Parameters:
    """Return the parameters that spread a range over all numbers of a dtype; 0 is stored exactly.

    Example:
        >>> scale, zero = parameters_of(Range(-1.0, 3.0), "uint8", symmetric=False)
        >>> round(float(scale * 255), 4), int(zero)
        (4.0, 64)
        >>> [int(parameters_of(Range(-1.0, 3.0), dtype, symmetric=True).zero) for dtype in ("uint8", "int8")]
        [128, 0]
    """
    limits = np.iinfo(to_numpy(dtype))
    low, high = min(values.low, 0.0), max(values.high, 0.0)
    if symmetric:
        middle = (limits.max + limits.min + 1) // 2
        return Parameters(_scale(max(-low, high) / (limits.max - middle)), np.array(middle, to_numpy(dtype)))
    scale = _scale((high - low) / (limits.max - limits.min))
    zero = np.clip(np.rint(limits.min - low / float(scale)), limits.min, limits.max)
    return Parameters(scale, zero.astype(to_numpy(dtype)))


def _scale(unit: float) -> np.ndarray:
    """Return a scale that float32 holds; 1 for a value that is 0 throughout."""
    tiny = float(np.finfo(np.float32).tiny)
    return np.array(max(unit, tiny) if unit > 0 else 1.0, np.float32)


def quantize_weight(
    weight: np.ndarray, axis: int | None, least: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return a weight as int8 from -127 to 127, and its scales: a vector along `axis`, or a number.

    least: scales are no smaller; a number, or one for each.

    Example:
        >>> codes, scales = quantize_weight(np.array([[1.0, 4.0], [-0.5, 2.0]], np.float32), 1)
        >>> codes.tolist(), (scales * 127).tolist()
        ([[127, 127], [-64, 64]], [1.0, 4.0])
    """
    others = tuple(place for place in range(weight.ndim) if place != axis)
    largest = np.abs(weight).max(axis=None if axis is None else others)
    scales = np.maximum(largest / np.float32(LARGEST_WEIGHT), least)
    scales = np.where(scales >= np.finfo(np.float32).tiny, scales, np.float32(1)).astype(np.float32)
    along = scales if axis is None else scales.reshape([-1 if place == axis else 1 for place in range(weight.ndim)])
    return np.clip(np.rint(weight / along), -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8), scales
