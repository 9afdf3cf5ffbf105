"""Analyse index expressions: the axes they depend on, flat offsets as sums of coefficient times axis, and loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernelyard.dims import Dim
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Binary, Const, DimValue, Expr, Load, Select
from kernelyard.tir.iterate import Iterate
from kernelyard.tir.primfunc import walk


@dataclass(frozen=True)
class Affine:
    """`sum(coefficient * atom) + constant`; an atom is an Axis, or an expression that is no sum of axes."""

    terms: tuple[tuple[Expr, Dim], ...]
    constant: Dim

    def coefficient(self, axis: str) -> Dim | None:
        """Return the stride of the axis (its affine coefficient); None if it is not constant."""
        step: Dim = 0
        for atom, coefficient in self.terms:
            if isinstance(atom, Axis):
                step = step + coefficient if atom.name == axis else step
            elif axis in axes_of(atom):
                return None
        return step

    def with_atom(self, atom: Expr, value: Affine) -> Affine:
        """Return the sum with an atom replaced."""
        factor = dict(self.terms)[atom]
        return Affine(tuple(term for term in self.terms if term[0] != atom), self.constant).plus(value, factor)

    def plus(self, other: Affine, factor: Dim = 1) -> Affine:
        """Return `self + factor * other`."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * factor
        kept = tuple((atom, c) for atom, c in terms.items() if c != 0)
        return Affine(kept, self.constant + other.constant * factor)


_ZERO = Affine((), 0)


@lru_cache(maxsize=1 << 14)
def axes_of(expr: Expr) -> frozenset[str]:
    """Return the names of the axes that an expression depends on."""
    return frozenset(e.name for e in walk(expr) if isinstance(e, Axis))


@lru_cache(maxsize=1 << 14)
def affine_of(expr: Expr) -> Affine:
    """Return an int64 expression as a sum."""
    match expr:
        case Const():
            return Affine((), int(expr.value))
        case DimValue():
            return Affine((), expr.dim)
        case Axis():
            return Affine(((expr, 1),), 0)
        case Binary(op="add"):
            return affine_of(expr.a).plus(affine_of(expr.b))
        case Binary(op="sub"):
            return affine_of(expr.a).plus(affine_of(expr.b), -1)
        case Binary(op="mul"):
            a, b = affine_of(expr.a), affine_of(expr.b)
            if not b.terms:
                return _ZERO.plus(a, b.constant)
            if not a.terms:
                return _ZERO.plus(b, a.constant)
    return Affine(((expr, 1),), 0)


def offset_of(buffer: Buffer, indices: Sequence[Expr], dropped: int = 0) -> Affine:
    """Return the flat offset of an element.

    The first `dropped` indices do not count (the buffer is kept without them).
    """
    total = _ZERO
    for expr, stride in list(zip(indices, buffer.strides, strict=True))[dropped:]:
        total = total.plus(affine_of(expr), stride)
    return total


def step_along(load: Load, axis: str) -> Dim | None:
    """Return the stride of a load along an axis, in elements; None where it varies."""
    return offset_of(load.buffer, load.indices).coefficient(axis)


def used_as_values(exprs: Sequence[Expr]) -> frozenset[str]:
    """Return the axes that occur outside of the indices of loads: in conditions, or as numbers."""
    found: set[str] = set()
    seen: set[int] = set()
    stack = list(exprs)
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        if isinstance(expr, Axis):
            found.add(expr.name)
        elif not isinstance(expr, Load):
            stack.extend(expr.children)
    return frozenset(found)


def unconditional_loads(expr: Expr, in_indices: bool = False) -> list[Load]:
    """Return the different loads that are performed whatever conditions hold.

    in_indices: those within the indices of others, too.
    """
    found: dict[Load, None] = {}
    seen: set[int] = set()
    stack = [expr]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Load):
            found[part] = None
        if not isinstance(part, Load) or in_indices:
            stack += part.children[:1] if isinstance(part, (Select, Iterate)) else part.children
    return list(found)
