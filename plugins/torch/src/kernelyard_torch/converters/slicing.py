"""Parts of tensors by slices and single positions, and tensors with such parts replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dims import Dim, Symbol, SymbolicDim, maximum, minimum
from kernelyard.plugins.api import Expr, Operand
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten.slice.Tensor")
def slice_(node: Node, x: Expr, axis: int, start: Dim | None, end: Dim | None, step: int) -> Expr:
    at = node.axis(axis, node.rank(x))
    begin = _start(start, node.shape(x)[at])
    count = node.result.shape[at]
    length = count if step == 1 or count == 0 else (count - 1) * step + 1
    return node.slice(x, at, begin, begin + length, step)


@converter("aten.select.int")
def select(node: Node, x: Expr, axis: int, index: Dim | Expr) -> Expr:
    at = node.axis(axis, node.rank(x))
    if isinstance(index, Expr):
        return node.op("take", x, node.reshape(index, ()), axis=at)
    begin = _start(index, node.shape(x)[at])
    return node.reshape(node.slice(x, at, begin, begin + 1), node.result.shape)


@converter("aten.narrow.default")
def narrow(node: Node, x: Expr, axis: int, start: Dim, length: Dim) -> Expr:
    at = node.axis(axis, node.rank(x))
    begin = _start(start, node.shape(x)[at])
    return node.slice(x, at, begin, begin + length)


@converter("aten.slice_scatter.default")
def slice_scatter(node: Node, x: Expr, part: Expr, axis: int, start: Dim | None, end: Dim | None, step: int) -> Expr:
    at = node.axis(axis, node.rank(x))
    part = node.cast(part, node.dtype(x))
    if step != 1:
        return _scatter(node, x, part, at, _start(start, node.shape(x)[at]), step)
    return _replace(node, x, part, at, _start(start, node.shape(x)[at]))


@converter("aten.select_scatter.default")
def select_scatter(node: Node, x: Expr, part: Expr, axis: int, index: Dim) -> Expr:
    at = node.axis(axis, node.rank(x))
    shape = [1 if i == at else dim for i, dim in enumerate(node.shape(x))]
    part = node.reshape(node.cast(part, node.dtype(x)), shape)
    return _replace(node, x, part, at, _start(index, node.shape(x)[at]))


def _start(start: Dim | None, size: Dim) -> Dim:
    """Return a begin as Python's slices understand it: negative ones count from the end, far ones are cut."""
    if start is None:
        return 0
    if not isinstance(start, int):
        return start + size if _is_negative(start) else start
    return maximum(start + size, 0) if start < 0 else minimum(start, size)


def _is_negative(dim: SymbolicDim) -> bool:
    """Return True for a number that is negative whatever sizes its symbols stand for.

    Quotients and the like have a sign of their own: -(-n // 2) is positive.
    """
    return all(factor < 0 and all(isinstance(atom, Symbol) for atom in monomial) for monomial, factor in dim.terms)


def _replace(node: Node, x: Expr, part: Expr, axis: int, begin: Dim) -> Expr:
    size, length = node.shape(x)[axis], node.shape(part)[axis]
    pieces: Sequence[tuple[Expr | None, Dim, Dim]] = ((x, 0, begin), (None, 0, length), (x, begin + length, size))
    kept = [part if x is None else node.slice(x, axis, low, high) for x, low, high in pieces if low != high]
    return node.concat(kept, axis)


def _scatter(node: Node, x: Expr, part: Expr, axis: int, begin: Dim, step: int) -> Expr:
    count = node.shape(part)[axis]
    if isinstance(count, int) and isinstance(begin, int):
        places: Operand = begin + np.arange(count)[:, None] * step
    else:
        places = node.reshape(node.op("arange", start=begin, step=step, count=count, dtype="int64"), (count, 1))
    written = node.op("scatter_nd", node.to_front(x, [axis]), places, node.to_front(part, [axis]))
    return node.from_front(written, [axis])


@converter("aten.unfold.default")
def unfold(node: Node, x: Expr, axis: int, size: int, step: int) -> Expr:
    at = node.axis(axis, node.rank(x))
    if not node.rank(x):
        return node.reshape(x, node.result.shape)
    count = node.result.shape[at]
    if isinstance(count, int):
        places: Operand = np.arange(count)[:, None] * step + np.arange(size)
    else:
        starts = node.op("arange", start=0, step=step, count=count, dtype="int64")
        places = node.op("add", node.reshape(starts, (count, 1)), np.arange(size))
    taken = node.op("take", x, places, axis=at)
    order = [i for i in range(node.rank(taken)) if i != at + 1]
    return node.permute(taken, [*order, at + 1])
