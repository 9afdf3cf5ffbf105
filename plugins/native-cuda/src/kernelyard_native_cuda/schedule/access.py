"""Access: how neighbouring elements of an expression lie in memory, and how many can be taken at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    Buffer,
    Const,
    Expr,
    IndexAlgebra,
    IterVar,
    Load,
    Select,
    axes_of,
    is_index,
    step_along,
    walk,
)

_GATHERED = "gathered."  # begins the symbol of an index that depends on memory


@dataclass(frozen=True)
class Access:
    """An element of memory, or zero where the condition does not hold; None: it always holds."""

    load: Load
    condition: Expr | None = None


def access_of(expr: Expr) -> Access | None:
    """Return an expression as an access whose place and condition depend on no memory; None where it is none."""
    if isinstance(expr, Select) and isinstance(expr.b, Const) and expr.b.value == 0:
        inner = access_of(expr.a)
        if inner is None or any(isinstance(e, Load) for e in walk(expr.condition)):
            return None
        both = expr.condition if inner.condition is None else expr.condition & inner.condition
        return Access(inner.load, both)
    return Access(expr) if isinstance(expr, Load) and all(map(is_index, expr.indices)) else None


def conjuncts(condition: Expr) -> Iterator[Expr]:
    """Return the conditions all of which must hold for one to hold."""
    if isinstance(condition, Binary) and condition.op == "and":
        yield from conjuncts(condition.a)
        yield from conjuncts(condition.b)
    else:
        yield condition


def is_multiple(dim: Dim, number: int) -> bool:
    """Return True where a dim is a multiple of a number, whatever its symbols are.

    Example:
        >>> is_multiple(8 * dims.symbol("n") + 16, 8), is_multiple(dims.symbol("n"), 2)
        (True, False)
    """
    terms = [((), dim)] if isinstance(dim, int) else dim.terms
    return all(coefficient % number == 0 for _, coefficient in terms)


def lanes_along(access: Access, axes: Sequence[IterVar], extents: Mapping[str, Dim], most: int) -> int:
    """Return the vector width, at most `most`, of an access whose neighbours lie along axes counted with the last one
    fastest: a power of two; 0 where neighbours are not contiguous, 1 where they are but not aligned.

    The first of them is at a multiple of that number.
    """
    fixed = axes_of(access.condition) if access.condition is not None else frozenset[str]()
    run, extent = _run(access.load, axes, fixed)
    if not run:
        return 1 if _run(access.load, axes)[0] else 0
    rest = offset_of(access.load.buffer, access.load.indices, extents, run)
    lanes = most
    while lanes > 1 and not (is_multiple(extent, lanes) and is_multiple(rest, lanes)):
        lanes //= 2
    return lanes


def lanes_in(dtype: str, nbytes: int) -> int:
    """Return how many elements fit in `nbytes`; at least one."""
    return max(nbytes // dtypes.itemsize(dtype), 1)


def _run(load: Load, axes: Sequence[IterVar], fixed: frozenset[str] = frozenset()) -> tuple[list[str], Dim]:
    """Return the last axes, none of them fixed, along which the load runs through memory without a gap, and how far."""
    names: list[str] = []
    extent: Dim = 1
    for axis in reversed([axis for axis in axes if axis.extent != 1]):
        if axis.name in fixed or step_along(load, axis.name) != extent:
            break
        names.append(axis.name)
        extent = extent * axis.extent
    return names, extent


def offset_of(buffer: Buffer, indices: Sequence[Expr], extents: Mapping[str, Dim], zero: Sequence[str]) -> Dim:
    """Return an element's offset as a polynomial in which some axes are 0.

    An index that depends on memory (of a gather) is a symbol of its own: any whole number.
    """
    algebra = IndexAlgebra(dict(extents))
    total: Dim = 0
    for number, (at, stride) in enumerate(zip(indices, buffer.strides, strict=True)):
        total = total + (algebra.to_dim(at) if is_index(at) else dims.symbol(f"{_GATHERED}{number}")) * stride
    for name in zero:
        (symbol,) = dims.symbols_of(algebra.to_dim(Axis(name)))
        total = total if isinstance(total, int) else dims.substitute(total, {symbol: 0})
    return total
