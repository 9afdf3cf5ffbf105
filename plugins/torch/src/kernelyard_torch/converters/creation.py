"""Tensors from numbers and sizes."""

from __future__ import annotations

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr, Operand
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten.full.default")
def full(node: Node, size: object, value: Operand, *_: object) -> Expr:
    return _fill(node, value)


@converter("aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor", "aten.new_full.default")
def full_like(node: Node, x: object, *rest: Operand) -> Expr:
    return _fill(node, rest[1] if isinstance(rest[0], (list, tuple)) else rest[0])


@converter("aten.scalar_tensor.default")
def scalar_tensor(node: Node, value: Operand, *_: object) -> Expr:
    return _fill(node, value)


@converter("aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_like.default", "aten.zeros.default")
@converter("aten.zeros_like.default", "aten.new_zeros.default", "aten.new_empty.default", "aten.empty_permuted.default")
def zeros(node: Node, *_: object) -> Expr:
    """Create zeros, also for uninitialized tensors (aten.empty), so that results are deterministic."""
    return _fill(node, 0)


@converter("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(node: Node, *_: object) -> Expr:
    return _fill(node, 1)


def _fill(node: Node, value: Operand) -> Expr:
    type_ = node.result
    return node.full(node.cast(node.expr(value, type_.dtype), type_.dtype), type_.shape, type_.dtype)


@converter("aten.arange.start_step")
def arange(node: Node, start: Dim | float, end: Dim | float, step: Dim | float, *_: object) -> Expr:
    type_ = node.result
    count = type_.shape[0]
    if isinstance(step, int) and not isinstance(start, float) and not is_float(type_.dtype):
        return node.op("arange", start=start, step=step, count=count, dtype=type_.dtype)
    if isinstance(count, int) and isinstance(start, (int, float)) and isinstance(step, (int, float)):
        return node.expr(np.asarray(start + np.arange(count) * step), type_.dtype)
    first, by = (node.cast(node.expr(each, "float64"), "float64") for each in (start, step))
    return node.op("add", node.op("multiply", node.op("arange", count=count, dtype="float64"), by), first)


@converter("aten.arange.default")
def arange_to(node: Node, end: Dim, *_: object) -> Expr:
    return arange(node, 0, end, 1)


@converter("aten.arange.start")
def arange_between(node: Node, start: Dim, end: Dim, *_: object) -> Expr:
    return arange(node, start, end, 1)


@converter("aten.tril.default")
def lower_triangle(node: Node, x: Expr, diagonal: int) -> Expr:
    return _triangle(node, x, diagonal, False)


@converter("aten.triu.default")
def upper_triangle(node: Node, x: Expr, diagonal: int) -> Expr:
    return _triangle(node, x, diagonal, True)


def _triangle(node: Node, x: Expr, diagonal: Dim, upper: bool) -> Expr:
    if not isinstance(diagonal, int):
        return _open_triangle(node, x, diagonal, upper)
    if node.dtype(x) == "bool":
        return node.cast(node.op("trilu", node.cast(x, "uint8"), k=diagonal, upper=upper), "bool")
    return node.op("trilu", x, k=diagonal, upper=upper)


def _open_triangle(node: Node, x: Expr, diagonal: Dim, upper: bool) -> Expr:
    """Return a triangle whose diagonal is known when the program runs: each place is compared with it."""
    *_, rows, columns = node.shape(x)
    row, column = (node.op("arange", start=0, step=1, count=count, dtype="int64") for count in (rows, columns))
    distance = node.op("subtract", column, node.reshape(row, (rows, 1)))
    inside = node.op("greater_equal" if upper else "less_equal", distance, node.expr(diagonal, "int64"))
    return node.op("where", inside, x, node.full(0, (), node.dtype(x)))


@converter("aten.linspace.default")
def linspace(node: Node, start: float, end: float, steps: int, *_: object) -> Expr:
    count = node.require_fixed(steps, "the number of steps")
    return node.expr(np.linspace(start, end, count), node.result.dtype)


@converter("aten._local_scalar_dense.default")
def local_scalar(node: Node, x: Expr) -> None:
    """Read a number from a tensor: as a size where it is an integer, else as a tensor of rank 0."""
    value = node.fx_node.meta["val"]
    x = node.reshape(x, ())
    if isinstance(value, (int, float, bool)):
        return
    if not hasattr(value, "node") or not value.node.expr.is_symbol:
        node.reject("an expression of the scalar that it reads is not supported")
    if not is_float(node.dtype(x)) and node.dtype(x) != "bool":
        node.importer.decide(value, node.cast(node.reshape(x, (1,)), "int64"), node)
    else:
        node.importer.shared.scalars[value.node.expr] = x
