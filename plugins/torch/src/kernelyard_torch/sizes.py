"""Sizes: torch's symbolic integers (SymPy expressions over s0, s1, ...) as dims over names that people gave."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy.symbol import SymT, symbol_is_type

from kernelyard import dims
from kernelyard.dims import Dim, symbol
from kernelyard.plugins.api import FreshNames

_RESERVED = ("max", "min", "broadcast")
_UNFIT = re.compile(r"\W+")


class NotASizeError(Exception):
    """An expression is no polynomial with floor divisions, maxima and minima. Never leaves this package."""


class Sizes:
    """Dims by torch's symbols.

    names: what people call a symbol, by torch's own name for it; others keep torch's.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._taken = FreshNames([])
        self._names = {own: self._free(wanted) for own, wanted in names.items()}
        self._told: dict[str, Dim] = {}

    def _free(self, wanted: str) -> str:
        stem = _UNFIT.sub("_", wanted).strip("_") or "size"
        if stem[0].isdigit() or stem in _RESERVED:
            stem = f"size_{stem}"
        return self._taken.unique(stem)

    def tell(self, expr: sympy.Symbol, dim: Dim) -> None:
        """Say what a number of the caller's is, which is no size of a tensor."""
        self._told[str(expr)] = dim

    def dim(self, size: Any) -> Dim:
        """Convert an int, a SymInt or a SymPy integer to a dim.

        Raises: NotASizeError.
        """
        if isinstance(size, int):
            return size
        return self._of(size.node.expr if isinstance(size, torch.SymInt) else size)

    def shape(self, tensor: torch.Tensor) -> tuple[Dim, ...]:
        """Return the sizes of a (fake) tensor. Raises: NotASizeError."""
        return tuple(self.dim(size) for size in tensor.shape)

    def fresh(self, wanted: str) -> Dim:
        """Return a size that nothing else has."""
        return symbol(self._free(wanted))

    def _of(self, expr: Any) -> Dim:
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            return self._of_symbol(expr)
        if type(expr).__name__ in _ROUNDED:
            return self._round(expr)
        combine = _COMBINE.get(type(expr).__name__)
        if combine is None:
            raise NotASizeError(str(expr))
        return combine(*(self._of(arg) for arg in expr.args))

    def _round(self, expr: Any) -> Dim:
        """Convert an integer times a fraction, rounded: a length over a step, an image's size times a scale."""
        factor, whole = _times_fraction(expr.args[0])
        round_, dim = _ROUNDED[type(expr).__name__], self._of(whole)
        return round_(dim * factor.numerator, factor.denominator)

    def _of_symbol(self, expr: sympy.Symbol) -> Dim:
        own = str(expr)
        if own in self._told:
            return self._told[own]
        if own not in self._names:
            self._names[own] = self._free(own)
        dim = symbol(self._names[own])
        return dim - 1 if is_unbacked(expr) else dim  # which may be zero, and our symbols are not


def is_unbacked(expr: sympy.Symbol) -> bool:
    """Return True for a size that data decides."""
    return symbol_is_type(expr, SymT.UNBACKED_INT)


def _times_fraction(expr: Any) -> tuple[Fraction, Any]:
    """Split a real number into a fraction and an integer expression. Raises: NotASizeError."""
    kind = type(expr).__name__
    if kind == "ToFloat":
        return Fraction(1), expr.args[0]
    number, other = _split_number(expr)
    if kind == "Mul":
        factor, whole = _times_fraction(other)
        return factor * number, whole
    if kind not in ("IntTrueDiv", "FloatTrueDiv") or expr.args[0] is not other:
        raise NotASizeError(str(expr))
    factor, whole = (Fraction(1), other) if kind == "IntTrueDiv" else _times_fraction(other)
    return factor / number, whole


def _split_number(expr: Any) -> tuple[Fraction, Any]:
    """Return the operands of an operator of two, one of which is a number. Raises: NotASizeError."""
    numbers, others = ([arg for arg in expr.args if arg.is_number == is_one] for is_one in (True, False))
    if len(numbers) != 1 or len(others) != 1 or not numbers[0].is_finite or numbers[0] == 0:
        raise NotASizeError(str(expr))
    number = Fraction(float(numbers[0]))
    if max(number.denominator, abs(number.numerator)) > _LARGEST:
        raise NotASizeError(str(expr))
    return number, others[0]


def _power(base: Dim, exponent: Dim) -> Dim:
    if not isinstance(exponent, int) or exponent < 0:
        raise NotASizeError(f"{base} ** {exponent}")
    return dims.product([base] * exponent)


def _modulo(left: Dim, right: Dim) -> Dim:
    return left - dims.floordiv(left, right) * right


_ROUNDED = {"CeilToInt": dims.ceildiv, "FloorToInt": dims.floordiv, "TruncToInt": dims.floordiv}
_LARGEST = 2**20  # terms of a fraction, beyond which a float is none that somebody wrote
_COMBINE: dict[str, Callable[..., Dim]] = {
    "Add": lambda *terms: reduce(lambda a, b: a + b, terms),
    "Mul": lambda *factors: dims.product(factors),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": dims.floordiv,
    "CleanDiv": dims.floordiv,
    "CeilDiv": dims.ceildiv,
    "Mod": _modulo,
    "PythonMod": _modulo,
    "ModularIndexing": lambda base, divisor, modulus: _modulo(dims.floordiv(base, divisor), modulus),
    "Max": lambda *items: reduce(dims.maximum, items),
    "Min": lambda *items: reduce(dims.minimum, items),
    "Identity": lambda item: item,
}
