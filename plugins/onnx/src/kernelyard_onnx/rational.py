"""Rational: a number that a model computes from sizes, exactly: a quotient of two dims."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim, SymbolicDim
from kernelyard_onnx.bounds import at_least, maximum, minimum


class UndecidedError(Exception):
    """A number depends on sizes in a way that cannot be written as a dim; never leaves this package."""


class Rational:
    """`numerator / denominator`, the denominator positive.

    Floats enter as the decimals that they print as: 0.7 in float32 is 7/10, so that `floor(0.7 * 10)` is 7 as in
    float32 arithmetic.
    """

    __slots__ = ("denominator", "numerator")

    def __init__(self, numerator: Dim, denominator: Dim = 1) -> None:
        if denominator != 1:
            numerator, denominator = _reduce(numerator, denominator)
        self.numerator = numerator
        self.denominator = denominator

    @staticmethod
    def of(value: object) -> Rational:
        """From a NumPy or Python number.

        Raises: UndecidedError for infinities and NaN.
        """
        if isinstance(value, Rational):
            return value
        if isinstance(value, (bool, np.bool_, int, np.integer)):
            return Rational(int(value))
        if isinstance(value, SymbolicDim):
            return Rational(value)
        if not math.isfinite(value):  # pyright: ignore[reportArgumentType]
            raise UndecidedError
        exact = Fraction(str(value))
        return Rational(exact.numerator, exact.denominator)

    def dim(self) -> Dim:
        """Return the value as a dim.

        Raises: UndecidedError when it is not whole.
        """
        if self.denominator != 1:
            raise UndecidedError
        return self.numerator

    def __add__(self, other: Rational) -> Rational:
        return Rational(
            self.numerator * other.denominator + other.numerator * self.denominator,
            self.denominator * other.denominator,
        )

    def __neg__(self) -> Rational:
        return Rational(self.numerator * -1, self.denominator)

    def __sub__(self, other: Rational) -> Rational:
        return self + -other

    def __mul__(self, other: Rational) -> Rational:
        return Rational(self.numerator * other.numerator, self.denominator * other.denominator)

    def __truediv__(self, other: Rational) -> Rational:
        if other.is_at_least(0) and other.numerator != 0:
            return Rational(self.numerator * other.denominator, self.denominator * other.numerator)
        if (-other).is_at_least(0) and other.numerator != 0:
            return -(self / -other)
        raise UndecidedError

    def floor(self) -> Rational:
        """Round towards minus infinity."""
        return Rational(dims.floordiv(self.numerator, self.denominator))

    def ceil(self) -> Rational:
        """Round towards plus infinity."""
        return Rational(dims.ceildiv(self.numerator, self.denominator))

    def trunc(self) -> Rational:
        """Round towards zero.

        Raises: UndecidedError when the sign is not known.
        """
        if self.is_at_least(0):
            return self.floor()
        if (-self).is_at_least(0):
            return self.ceil()
        raise UndecidedError

    def is_at_least(self, number: int) -> bool:
        """Return True when `self >= number` is proved."""
        return at_least(self.numerator, self.denominator * number)

    def maximum(self, other: Rational) -> Rational:
        """Return the larger; both must be whole. Raises: UndecidedError."""
        return Rational(maximum(self.dim(), other.dim()))

    def minimum(self, other: Rational) -> Rational:
        """Return the smaller; both must be whole. Raises: UndecidedError."""
        return Rational(minimum(self.dim(), other.dim()))

    def sign(self) -> int:
        """-1, 0 or 1 where the sign is the same for all sizes.

        Raises: UndecidedError.
        """
        if self.numerator == 0:
            return 0
        if at_least(self.numerator, 1):
            return 1
        if at_least(self.numerator * -1, 1):
            return -1
        raise UndecidedError

    def __repr__(self) -> str:
        return str(self.numerator) if self.denominator == 1 else f"({self.numerator}) / ({self.denominator})"


def _reduce(numerator: Dim, denominator: Dim) -> tuple[Dim, Dim]:
    if isinstance(numerator, int) and isinstance(denominator, int):
        common = math.gcd(numerator, denominator)
        return numerator // common, denominator // common
    quotient = dims.floordiv(numerator, denominator)
    if quotient * denominator == numerator:
        return quotient, 1
    inverse = dims.floordiv(denominator, numerator) if at_least(numerator, 1) else 0
    if inverse * numerator == denominator:
        return 1, inverse
    common = math.gcd(*(c for side in (numerator, denominator) for c in _coefficients(side)))
    return dims.floordiv(numerator, common), dims.floordiv(denominator, common)


def _coefficients(dim: Dim) -> list[int]:
    return [dim] if isinstance(dim, int) else [coefficient for _, coefficient in dim.terms]
