"""Helpers of several rule families: broadcast indexing and splitting of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard.dims import Dim, Shape
from kernelyard.legalize.registry import Operand, RuleBuilder
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import DimValue, Expr, equal, index, select

Source = Operand | Buffer


def broadcast_index(shape: Shape, target: Shape, at: Sequence[Expr]) -> tuple[Expr, ...]:
    """Map index `at` of the broadcast shape `target` to the index of the element of a tensor of `shape`.

    A dim that may turn out to be 1 at run time chooses then.
    """
    offset = len(target) - len(shape)
    return tuple(_broadcast_axis(dim, target[offset + n], at[offset + n]) for n, dim in enumerate(shape))


def _broadcast_axis(dim: Dim, target: Dim, at: Expr) -> Expr:
    if dim == target:
        return at
    if isinstance(dim, int):
        return index(0) if dim == 1 else at
    return select(equal(DimValue(dim), 1), 0, at)


def elementwise(b: RuleBuilder, shape: Shape, body: Callable[..., Expr], *sources: Source, name: str = "t") -> Buffer:
    """Return a buffer of `shape` that is `body` of the sources' elements, broadcast."""
    return b.compute(shape, lambda *at: body(*(x[broadcast_index(x.shape, shape, at)] for x in sources)), name)


def merge_axes(rank: int, axes: Sequence[int], outer: Sequence[Expr], inner: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return an index of full rank: `inner` in order at `axes`, `outer` in order at the others."""
    outer_values, inner_values = iter(outer), iter(inner)
    return tuple(next(inner_values if n in axes else outer_values) for n in range(rank))


def drop_reduced_axes(axes: Sequence[int], at: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return an index with the reduced `axes` left out."""
    return tuple(value for n, value in enumerate(at) if n not in axes)


def split_shape(shape: Shape, axes: Sequence[int]) -> tuple[Shape, Shape]:
    """Return the dims that are not in `axes`, and those that are."""
    outer = tuple(dim for n, dim in enumerate(shape) if n not in axes)
    return outer, tuple(shape[n] for n in axes)
