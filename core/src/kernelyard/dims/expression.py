"""Dimensions: plain ints, or integer expressions over named symbols, kept in a normal form.

`Dim = int | SymbolicDim`. Two dims are proved equal exactly when they compare equal. A `SymbolicDim` is a polynomial
with integer coefficients over atoms: symbols, floor divisions, maxima, minima and broadcasts. Both halves need them
(the compiler proves with them, the runtime evaluates them), so they live below both.

Symbols stand for sizes and are taken to be at least 1; `evaluate` checks what `broadcast` could only assume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import TypeAlias

from kernelyard.cached_property import cached_property
from kernelyard.errors import ShapeError
from kernelyard.records import record

Dim: TypeAlias = "int | SymbolicDim"
Shape: TypeAlias = "tuple[Dim, ...]"
MAX_DIM = 1 << 48  # the largest size of an axis: no machine has memory for more
Bounds: TypeAlias = "tuple[int, int | None]"  # the least and the largest value of a size; None where it is open
Monomial: TypeAlias = "tuple[Atom, ...]"


@record
class Symbol:
    """A named size that is known when the program is called."""

    name: str

    @cached_property
    def key(self) -> str:
        return self.name


@record
class Function:
    """An operation on dims that is not polynomial: `floordiv`, `max`, `min` or `broadcast`."""

    name: str
    left: Dim
    right: Dim

    @cached_property
    def key(self) -> str:
        if self.name == "floordiv":
            return (
                f"({self.left}) // ({self.right})"
                if isinstance(self.right, SymbolicDim)
                else f"({self.left}) // {self.right}"
            )
        return f"{self.name}({self.left}, {self.right})"


Atom: TypeAlias = "Symbol | Function"


# A short text can name a polynomial with millions of terms: what a file brings must not.
MAX_PRODUCTS = 1 << 12


class SymbolicDim:
    """A dimension that is not a constant; immutable, hashable, equal when provably equal.

    Example:
        >>> n = symbol("n")
        >>> (n * 4 + 8) // 4
        n + 2
        >>> evaluate((n + 1) // 2, {"n": 7})
        4
    """

    __slots__ = ("_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, SymbolicDim):
            return self is other
        return self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        return _sum([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        if len(self.terms) * len(_terms(other)) > MAX_PRODUCTS:
            raise ShapeError("a dimension expression is too large", found=f"({self}) * ({other})"[:200])
        return _sum([(_monomial(a + b), x * y) for a, x in self.terms for b, y in _terms(other)])

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - floordiv(self, other) * other

    def __rmod__(self, other: Dim) -> Dim:
        return other - floordiv(other, self) * self

    def __repr__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = [_factor(atom) for atom in monomial]
            size = abs(coefficient)
            body = " * ".join(factors if size == 1 and factors else [*factors, str(size)])
            sign = "-" if coefficient < 0 else "+"
            text = f"{text} {sign} {body}" if text else (f"-{body}" if coefficient < 0 else body)
        return text


def _factor(atom: Atom) -> str:
    return f"({atom.key})" if isinstance(atom, Function) and atom.name == "floordiv" else atom.key


def _monomial(atoms: Iterable[Atom]) -> Monomial:
    return tuple(sorted(atoms, key=lambda atom: atom.key))


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, SymbolicDim):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(monomial, c) for monomial, c in total.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    # Longest monomials first, the constant last: the order in which people write polynomials.
    kept.sort(key=lambda term: (-len(term[0]), [atom.key for atom in term[0]]))
    return SymbolicDim(tuple(kept))


def _of_atom(atom: Atom) -> Dim:
    return SymbolicDim((((atom,), 1),))


def symbol(name: str) -> SymbolicDim:
    """Return the dim that is one symbol.

    Example:
        >>> symbol("batch") * 2
        batch * 2
    """
    return SymbolicDim((((Symbol(name),), 1),))


def as_symbol(dim: Dim) -> str | None:
    """Return the name of a dim that is one bare symbol, else None."""
    if isinstance(dim, SymbolicDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def floordiv(left: Dim, right: Dim) -> Dim:
    """Return `left // right`, rounded towards minus infinity; `right` is taken to be positive.

    Raises: ShapeError on division by zero.
    """
    if right == 0:
        raise ShapeError("a dimension is divided by zero", found=f"{left} // 0")
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if right == 1:
        return left
    quotient, rest = _divide_exactly(left, right)
    if rest == 0:
        return quotient
    if not isinstance(right, int):
        return _of_atom(Function("floordiv", left, right))
    # (right * q + r) // right == q + r // right holds for every integer right; keep the constant of r in [0, right).
    constant = _constant(rest)
    quotient, rest = quotient + constant // right, rest - constant + constant % right
    return quotient + _floordiv_reduced(rest, right)


def _floordiv_reduced(left: Dim, right: int) -> Dim:
    if isinstance(left, int):
        return left // right
    variable, constant = left - _constant(left), _constant(left)
    common = math.gcd(right, *(c for m, c in left.terms if m))
    if common > 1:  # (g * v + c) // (g * d) == (v + c // g) // d
        return floordiv(_scale_down(variable, common) + constant // common, right // common)
    inner = _lone_function(variable, "floordiv")
    if inner is not None and isinstance(inner.right, int):  # (x // a + c) // b == (x + a * c) // (a * b)
        return floordiv(inner.left + inner.right * constant, inner.right * right)
    return _of_atom(Function("floordiv", left, right))


def _lone_function(dim: Dim, name: str) -> Function | None:
    """Return the function of that name which a dim is; None where it is another one, or more."""
    if isinstance(dim, SymbolicDim) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
        atom = dim.terms[0][0][0]
        if isinstance(atom, Function) and atom.name == name:
            return atom
    return None


def _constant(dim: Dim) -> int:
    return next((c for m, c in _terms(dim) if not m), 0)


def _scale_down(dim: Dim, factor: int) -> Dim:
    return _sum([(m, c // factor) for m, c in _terms(dim)])


def _divide_exactly(left: Dim, right: Dim) -> tuple[Dim, Dim]:
    """Quotient and rest, where the quotient has the terms of `left` that `right` divides."""
    if left == right:
        return 1, 0
    if len(_terms(right)) != 1:
        return 0, left
    ((divisor, scale),) = _terms(right)
    quotient: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in _terms(left):
        remaining = _without(monomial, divisor)
        if remaining is not None and coefficient % scale == 0:
            quotient.append((remaining, coefficient // scale))
        else:
            rest.append((monomial, coefficient))
    return _sum(quotient), _sum(rest)


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def ceildiv(left: Dim, right: Dim) -> Dim:
    """Return `left / right`, rounded up."""
    return floordiv(left + right - 1, right)


def maximum(left: Dim, right: Dim) -> Dim:
    """Return the larger of two dims."""
    return _extremum("max", left, right, max)


def minimum(left: Dim, right: Dim) -> Dim:
    """Return the smaller of two dims."""
    return _extremum("min", left, right, min)


def _extremum(name: str, left: Dim, right: Dim, choose: Callable[[int, int], int]) -> Dim:
    difference = left - right
    if isinstance(difference, int):
        return right + choose(difference, 0)
    ordered = sorted((left, right), key=str)
    return _of_atom(Function(name, ordered[0], ordered[1]))


def broadcast(left: Dim, right: Dim) -> Dim:
    """Return the common size of two dims under NumPy's rule: equal, or one of them 1.

    What cannot be proved is checked by `evaluate`. Raises: ShapeError when both are known and disagree.
    """
    if left == right or right == 1:
        return left
    if left == 1:
        return right
    # Whatever the order, and each but once: sizes that are broadcast again and again would grow without end.
    sizes = set(_sizes_of_broadcast(left) + _sizes_of_broadcast(right))
    if sum(isinstance(size, int) for size in sizes) > 1:
        raise ShapeError(f"sizes {left} and {right} do not broadcast", expected="equal sizes, or one of them 1")
    return reduce(lambda a, b: _of_atom(Function("broadcast", a, b)), sorted(sizes, key=str))


def _sizes_of_broadcast(dim: Dim) -> list[Dim]:
    """Return the sizes whose common size a dim is; itself, where it is no broadcast."""
    found = _lone_function(dim, "broadcast")
    return [dim] if found is None else [*_sizes_of_broadcast(found.left), *_sizes_of_broadcast(found.right)]


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of dims; 1 for none."""
    return math.prod(dims)  # pyright: ignore[reportArgumentType, reportCallIssue]  of symbolic ones, too


BUILDERS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "max": maximum,
    "min": minimum,
    "broadcast": broadcast,
}


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace symbols in `dim` by other dims; symbols not in `values` stay.

    Raises: ShapeError when a broadcast turns out to be impossible.
    """
    if isinstance(dim, int):
        return dim

    def of_atom(atom: Atom) -> Dim:
        if isinstance(atom, Symbol):
            return values.get(atom.name, _of_atom(atom))
        return BUILDERS[atom.name](substitute(atom.left, values), substitute(atom.right, values))

    return reduce(lambda a, b: a + b, (product([c, *map(of_atom, m)]) for m, c in dim.terms), 0)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """Return the value of a dim when its symbols are known.

    Raises: ShapeError when a symbol is missing or a broadcast does not hold.
    """
    if isinstance(dim, int):
        return dim
    try:
        return _evaluate(dim, values)
    except KeyError:
        missing = ", ".join(sorted(symbols_of(dim) - values.keys()))
        raise ShapeError(f"the dimension {dim} is not known", found=f"no value for {missing}") from None


def _evaluate(dim: SymbolicDim, values: Mapping[str, int]) -> int:
    """Sum the terms; a new size evaluates thousands of dims, so that no dim is made on the way."""
    total = 0
    for monomial, product in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                product *= values[atom.name]
            else:
                left, right = (d if isinstance(d, int) else _evaluate(d, values) for d in (atom.left, atom.right))
                value = BUILDERS[atom.name](left, right)
                assert isinstance(value, int)  # of two numbers
                product *= value
        total += product
    return total


def symbols_of(dim: Dim) -> frozenset[str]:
    """Return the names of the symbols in a dim."""
    if isinstance(dim, int):
        return frozenset()
    names: set[str] = set()
    for monomial, _ in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                names.add(atom.name)
            else:
                names |= symbols_of(atom.left) | symbols_of(atom.right)
    return frozenset(names)
