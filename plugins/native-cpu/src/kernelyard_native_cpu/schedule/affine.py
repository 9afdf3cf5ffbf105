"""Where a load or a store goes: flat element offsets as sums of coefficient times axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kernelyard.dims import Dim
from kernelyard.tir import Axis, Binary, Buffer, Const, DimValue, Expr, Load, Select
from kernelyard.tir.primfunc import walk


@dataclass(frozen=True)
class Affine:
    """`sum(coefficient * atom) + constant`; an atom is an Axis, or an expression that is no sum of axes."""

    terms: tuple[tuple[Expr, Dim], ...]
    constant: Dim

    def coefficient(self, axis: str) -> Dim | None:
        """How far one step of the axis goes; None when that is not the same everywhere."""
        step: Dim = 0
        for atom, coefficient in self.terms:
            if isinstance(atom, Axis):
                step = step + coefficient if atom.name == axis else step
            elif axis in axes_of(atom):
                return None
        return step

    def with_atom(self, atom: Expr, value: Affine) -> Affine:
        """The sum with an atom replaced."""
        factor = dict(self.terms)[atom]
        return Affine(tuple(term for term in self.terms if term[0] != atom), self.constant).plus(value, factor)

    def plus(self, other: Affine, factor: Dim = 1) -> Affine:
        """`self + factor * other`."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient * factor
        kept = tuple((atom, c) for atom, c in terms.items() if c != 0)
        return Affine(kept, self.constant + other.constant * factor)


_ZERO = Affine((), 0)


@lru_cache(maxsize=1 << 14)
def axes_of(expr: Expr) -> frozenset[str]:
    """Names of the axes that an expression depends on."""
    return frozenset(e.name for e in walk(expr) if isinstance(e, Axis))


@lru_cache(maxsize=1 << 14)
def affine_of(expr: Expr) -> Affine:
    """An int64 expression as a sum."""
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
    """The flat offset of an element; the first `dropped` indices do not count (the buffer is kept without them)."""
    total = _ZERO
    for expr, stride in list(zip(indices, buffer.strides, strict=True))[dropped:]:
        total = total.plus(affine_of(expr), stride)
    return total


@dataclass(frozen=True)
class Access:
    """One load or store: its offset, the bytes of an element, and whether it is done at every point of a reduction
    (or once, before or after it)."""

    offset: Affine
    itemsize: int
    is_store: bool = False
    is_inner: bool = True


def used_as_values(exprs: Sequence[Expr]) -> frozenset[str]:
    """Axes that occur outside of the indices of loads: in conditions, or as numbers."""
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


def collapse(
    axes: Sequence[str], extents: Mapping[str, Dim], accesses: Sequence[Access], fixed: frozenset[str]
) -> tuple[list[str], dict[str, Dim]]:
    """Merge neighbouring axes that every access walks as if they were one.

    Returns the axes that stay and all extents: a merged axis has the product of the extents, those that went have 1.
    fixed: axes that may not be merged.
    """
    kept = list(axes)
    sizes = dict(extents)
    for inner_index in range(len(kept) - 1, 0, -1):
        outer, inner = kept[inner_index - 1], kept[inner_index]
        if {outer, inner} & fixed or not _walk_as_one(outer, inner, sizes[inner], accesses):
            continue
        # The outer one takes part in nothing any more; the next pair is (its predecessor, the merged axis).
        sizes[inner], sizes[outer] = sizes[outer] * sizes[inner], 1
        kept[inner_index - 1] = inner
        del kept[inner_index]
    return kept, sizes


def _walk_as_one(outer: str, inner: str, size: Dim, accesses: Sequence[Access]) -> bool:
    for access in accesses:
        far, near = access.offset.coefficient(outer), access.offset.coefficient(inner)
        if far is None or near is None or far != near * size:
            return False
    return True


def unconditional_loads(expr: Expr) -> list[Load]:
    """Loads that are performed whatever conditions hold; not those within the indices of others."""
    found: list[Load] = []
    seen: set[int] = set()
    stack = [expr]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Load):
            found.append(part)
        else:
            stack += [part.condition] if isinstance(part, Select) else part.children
    return found
