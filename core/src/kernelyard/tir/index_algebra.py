"""Index arithmetic: int64 expressions as polynomials, and what can be proved about their signs.

An index expression becomes a `Dim` in which axes are symbols of their own, so that it takes the dims' normal form.
Only arithmetic on axes, dims and literals is one: it cannot overflow, where loaded integers wrap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from types import MappingProxyType

from kernelyard import dims
from kernelyard.dims import Dim, SymbolicDim
from kernelyard.errors import IRError
from kernelyard.tir.expr import INDEX, Axis, Binary, Const, DimValue, Expr, index

Extents = Mapping[str, Dim]

_AXIS = "axis "  # no symbol that can be parsed has a space in its name
_REMAINDER = "remainder "
_ARITHMETIC = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max"})


def is_index(expr: Expr) -> bool:
    """Return True for arithmetic on axes, dims and literals alone."""
    if isinstance(expr, Binary):
        return expr.op in _ARITHMETIC and is_index(expr.a) and is_index(expr.b)
    return isinstance(expr, (Axis, DimValue, Const)) and expr.dtype == INDEX


class IndexAlgebra:
    """Converts and proves under known axis extents.

    Example:
        >>> algebra = IndexAlgebra({"i": 4, "j": 8})
        >>> i, j = Axis("i"), Axis("j")
        >>> algebra.normalize((i * 8 + j) // 8) == i
        True
    """

    def __init__(self, extents: Extents) -> None:
        self.extents = extents
        self._name_of: dict[Expr, str] = {}
        self._expr_of: dict[str, Expr] = {}

    def normalize(self, expr: Expr) -> Expr:
        """Return an equal int64 expression in normal form."""
        return self.to_expr(self.to_dim(expr))

    def to_dim(self, expr: Expr) -> Dim:
        """Return the polynomial of an index expression; divisors are taken to be positive.

        Raises: IRError for other expressions (see `is_index`).
        """
        match expr:
            case Const():
                return int(expr.value)
            case DimValue():
                return expr.dim
            case Axis():
                return dims.symbol(_AXIS + expr.name)
            case Binary() if expr.op in _ARITHMETIC:
                return self._arithmetic(expr.op, self.to_dim(expr.a), self.to_dim(expr.b))
        raise IRError("this is no index expression", found=repr(expr))

    def _arithmetic(self, op: str, a: Dim, b: Dim) -> Dim:
        match op:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                return a * b
            case "min":
                return a if self.is_nonnegative(b - a) else b if self.is_nonnegative(a - b) else dims.minimum(a, b)
            case "max":
                return a if self.is_nonnegative(a - b) else b if self.is_nonnegative(b - a) else dims.maximum(a, b)
            case "floordiv":
                return self._floordiv(a, b)
        return self._mod(a, b)

    def _floordiv(self, a: Dim, b: Dim) -> Dim:
        quotient, rest = self._split(a, b)
        if self._is_between(rest, b):
            return quotient
        return quotient + dims.floordiv(rest, b)

    def _mod(self, a: Dim, b: Dim) -> Dim:
        _, rest = self._split(a, b)
        if self._is_between(rest, b):
            return rest
        if isinstance(rest, int) and isinstance(b, int):
            return rest % b
        return self._remainder(Binary("mod", self.to_expr(rest), self.to_expr(b)))

    def _split(self, a: Dim, b: Dim) -> tuple[Dim, Dim]:
        """Return quotient and remainder with `a == quotient * b + remainder`; the quotient has the terms that `b`
        divides.
        """
        if isinstance(a, int) or (not isinstance(b, int) and len(b.terms) != 1):
            return (1, 0) if a == b else (0, a)
        quotient: Dim = 0
        for monomial, coefficient in a.terms:
            term = _sum_of([(monomial, coefficient)])
            whole = dims.floordiv(term, b) if monomial else 0
            if whole * b == term:
                quotient = quotient + whole
        if isinstance(b, int):  # the constant left over is brought into [0, b)
            quotient = quotient + _constant(a) // b
        return quotient, a - quotient * b

    def _is_between(self, dim: Dim, limit: Dim) -> bool:
        return self.is_nonnegative(dim) and self.is_nonnegative(limit - dim - 1)

    def _remainder(self, expr: Expr) -> Dim:
        name = self._name_of.setdefault(expr, f"{_REMAINDER}{len(self._name_of):06d}")
        self._expr_of[name] = expr
        return dims.symbol(name)

    def to_expr(self, dim: Dim) -> Expr:
        """Return the expression of a polynomial; terms without axes stay together as one `DimValue`."""
        if isinstance(dim, int):
            return Const(dim, INDEX)
        loose = [(m, c) for m, c in dim.terms if any(_is_internal(atom) for atom in m)]
        fixed = dim - _sum_of(loose)
        total: Expr | None = None
        for monomial, coefficient in loose:
            total = self._add_term(total, monomial, coefficient)
        if total is None:
            return index(fixed)
        if isinstance(fixed, int):
            return total if fixed == 0 else Binary("sub", total, Const(-fixed, INDEX)) if fixed < 0 else total + fixed
        return total + fixed

    def _add_term(self, total: Expr | None, monomial: dims.Monomial, coefficient: int) -> Expr:
        constants = dims.product([abs(coefficient), *(_of_atom(a) for a in monomial if not _is_internal(a))])
        factors = [self._factor(atom) for atom in monomial if _is_internal(atom)]
        term = reduce(lambda a, b: Binary("mul", a, b), factors)
        if constants != 1:
            term = Binary("mul", term, index(constants))
        if total is None:
            return term if coefficient > 0 else Binary("sub", Const(0, INDEX), term)
        return Binary("add" if coefficient > 0 else "sub", total, term)

    def _factor(self, atom: dims.Atom) -> Expr:
        if isinstance(atom, dims.Symbol):
            if atom.name.startswith(_AXIS):
                return Axis(atom.name[len(_AXIS) :])
            return self._expr_of[atom.name]
        return Binary(atom.name, self.to_expr(atom.left), self.to_expr(atom.right))

    def is_nonnegative(self, dim: Dim) -> bool:
        """Return True when `dim >= 0` is proved for all axis values in range and all sizes >= 1.

        False proves nothing.
        """
        if isinstance(dim, int):
            return dim >= 0
        for name in self._falling_axes(dim):
            extent = self.extents[name]
            dim = dims.substitute(dim, {_AXIS + name: extent - 1})
            if isinstance(dim, int):
                return dim >= 0
        sizes = [name for name in dims.symbols_of(dim) if not _is_internal_name(name)]
        shifted = dims.substitute(dim, {name: dims.symbol(name) + 1 for name in sizes})
        terms = [((), shifted)] if isinstance(shifted, int) else shifted.terms
        back: dict[str, Dim] = {name: dims.symbol(name) - 1 for name in sizes}  # atoms have parts of their own to shift
        return all(c >= 0 and all(self._is_nonnegative_atom(atom, back) for atom in m) for m, c in terms)

    def _falling_axes(self, dim: SymbolicDim) -> list[str]:
        """Return the axes in which the polynomial decreases by 1 per step, whose last value is its minimum."""
        names = [
            atom.name[len(_AXIS) :]
            for monomial, coefficient in dim.terms
            for atom in monomial
            if coefficient < 0 and isinstance(atom, dims.Symbol) and atom.name.startswith(_AXIS)
        ]
        return [name for name in dict.fromkeys(names) if name in self.extents and self._slope(dim, name) == -1]

    def _slope(self, dim: Dim, axis: str) -> int | None:
        """Return 1 where it never falls as an axis grows, -1 where it never rises, 0 without the axis; else None."""
        if isinstance(dim, int):
            return 0
        return _common_slope(self._slope_of_term(*term, axis) for term in dim.terms)

    def _slope_of_term(self, monomial: dims.Monomial, coefficient: int, axis: str) -> int | None:
        slopes = [self._slope_of_atom(atom, axis) for atom in monomial]
        slope = _common_slope(slopes)
        if not slope:
            return slope
        # A product goes where its factors go only if the other factors are not negative.
        is_product = len(monomial) > 1
        if is_product and not all(self._is_nonnegative_atom(atom) for atom in monomial):
            return None
        return slope if coefficient > 0 else -slope

    def _slope_of_atom(self, atom: dims.Atom, axis: str) -> int | None:
        if isinstance(atom, dims.Symbol):  # a remainder is not negative, whatever the axes in it are
            return int(atom.name == _AXIS + axis)
        left, right = self._slope(atom.left, axis), self._slope(atom.right, axis)
        if atom.name in ("min", "max") or left == right == 0:
            return _common_slope((left, right))
        return left if atom.name == "floordiv" and right == 0 else None

    def _is_nonnegative_atom(self, atom: dims.Atom, sizes: Mapping[str, Dim] = MappingProxyType({})) -> bool:
        """Tell if an atom is proved to be at least 0; `sizes`: what symbols in it stand for."""
        if isinstance(atom, dims.Symbol):
            return True  # sizes, axes, and remainders by divisors that are sizes
        parts = [self.is_nonnegative(dims.substitute(part, sizes)) for part in (atom.left, atom.right)]
        return any(parts) if atom.name == "max" else all(parts)


def _common_slope(slopes: Iterable[int | None]) -> int | None:
    """Return the direction in which all go that go anywhere; None where they differ or one is not known."""
    directions = {slope for slope in slopes if slope != 0}
    return directions.pop() if len(directions) == 1 else None if directions else 0


def _is_internal_name(name: str) -> bool:
    return name.startswith((_AXIS, _REMAINDER))


def _is_internal(atom: dims.Atom) -> bool:
    if isinstance(atom, dims.Symbol):
        return _is_internal_name(atom.name)
    return any(map(_is_internal_name, dims.symbols_of(atom.left) | dims.symbols_of(atom.right)))


def _of_atom(atom: dims.Atom) -> Dim:
    return SymbolicDim((((atom,), 1),))


def _sum_of(terms: list[tuple[dims.Monomial, int]]) -> Dim:
    return reduce(lambda a, b: a + b, (dims.product([c, *map(_of_atom, m)]) for m, c in terms), 0)


def _constant(dim: SymbolicDim) -> int:
    return next((c for m, c in dim.terms if not m), 0)
