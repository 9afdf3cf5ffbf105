"""Difference: how far an array is from the one that was expected."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kernelyard import dtypes

# By dtype: the largest difference, as a fraction of the largest magnitude, that rounding and another order of
# summation explain in a network of many layers.
TOLERANCES = {
    "float64": 1e-8,
    "float32": 1e-3,
    "float16": 2e-2,
    "bfloat16": 1e-1,
    "float8_e4m3fn": 3e-1,
    "float8_e5m2": 4e-1,
}


@dataclass(frozen=True)
class Difference:
    """The error of an array.

    absolute: the largest. relative: that, as a fraction of the largest expected magnitude. ulp: the largest, in units
    in the last place of the expected element; elements of a thousandth of the largest or less do not count. nans, infs:
    elements that should not be so. cosine: 1 for the same
    direction. mismatch: what is wrong with the shape or dtype, "" for nothing.
    """

    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0
    nans: int = 0
    infs: int = 0
    cosine: float = 1.0
    mismatch: str = ""
    tolerance: float = 0.0

    @property
    def kind(self) -> str:
        """Name the kind of difference: "shape", "nan", "inf", "values", or "" where the arrays agree."""
        if self.mismatch:
            return "shape"
        if self.nans:
            return "nan"
        if self.infs:
            return "inf"
        return "values" if self.relative > self.tolerance else ""

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON data."""
        return {**asdict(self), "kind": self.kind}

    def __str__(self) -> str:
        if self.mismatch:
            return self.mismatch
        born = [f"{n} {what}" for n, what in ((self.nans, "NaN"), (self.infs, "Inf")) if n]
        numbers = f"abs {self.absolute:.3g}, rel {self.relative:.3g}, {self.ulp:.3g} ulp, cosine {self.cosine:.6f}"
        return ", ".join([*born, numbers])


def difference(actual: np.ndarray, expected: np.ndarray, tolerance: float | None = None) -> Difference:
    """Return how far an array is from what was expected.

    tolerance: of the relative error; None takes that of the dtype, which is 0 for integers, except that 8-bit integers
    may be off by one.

    Example:
        >>> difference(np.float32([1, 2]), np.float32([1, 4])).relative
        0.5
    """
    dtype = dtypes.from_numpy(expected.dtype)
    allowed = TOLERANCES.get(dtype, 0.0) if tolerance is None else tolerance
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        found = f"{actual.shape} {actual.dtype.name}"
        return Difference(mismatch=f"{found} in place of {expected.shape} {expected.dtype.name}", tolerance=allowed)
    one, other = actual.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    finite = np.isfinite(one) & np.isfinite(other)
    errors = np.where(same | ~finite, 0.0, np.abs(np.where(finite, one, 0) - np.where(finite, other, 0)))
    largest = float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
    absolute = float(errors.max(initial=0.0))
    if dtype in ("int8", "uint8") and tolerance is None and absolute <= 1.0:
        allowed = 1.0
    return Difference(
        absolute,
        absolute / largest if largest else absolute,
        float(np.where(np.abs(other) > largest / 1000, errors / _spacing(expected), 0.0).max(initial=0.0)),
        int((np.isnan(one) & ~np.isnan(other)).sum()),
        int((np.isinf(one) & np.isfinite(other)).sum() + (np.isfinite(one) & np.isinf(other)).sum()),
        _cosine(one[finite], other[finite]),
        tolerance=allowed,
    )


def _spacing(expected: np.ndarray) -> np.ndarray:
    """Return the distance from each number to the next one of its dtype; 1 for integers."""
    name = dtypes.from_numpy(expected.dtype)
    if name not in TOLERANCES:
        return np.ones(expected.size)
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7, "float8_e4m3fn": 3, "float8_e5m2": 2}[name]
    least = {"float64": -1022, "float32": -126, "bfloat16": -126, "float16": -14}.get(name, -14)
    magnitudes = np.abs(expected.astype(np.float64).reshape(-1))
    exponents = np.frexp(np.where(np.isfinite(magnitudes), magnitudes, 1.0))[1] - 1
    return np.ldexp(1.0, np.maximum(exponents, least) - bits)


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    scale_one, scale_other = (float(np.abs(each).max(initial=0.0)) for each in (one, other))
    if not scale_one or not scale_other:
        return 1.0 if scale_one == scale_other else 0.0
    one, other = one / scale_one, other / scale_other
    return float(np.clip(one @ other / np.sqrt((one @ one) * (other @ other)), -1.0, 1.0))
