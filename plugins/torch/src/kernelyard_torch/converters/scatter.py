"""Writing and accumulating along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr, Operand, window_table
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}
REDUCERS = {"add": "sum", "mul": "prod"}  # what loop-level code calls these


@converter("aten.scatter.src", "aten.scatter.value")
def scatter(node: Node, x: Expr, axis: int, indices: Expr, source: Operand) -> Expr:
    return _scatter(node, x, axis, indices, source, "none")


@converter("aten.scatter_add.default")
def scatter_add(node: Node, x: Expr, axis: int, indices: Expr, source: Expr) -> Expr:
    return _scatter(node, x, axis, indices, source, "add")


@converter("aten.scatter_reduce.two")
def scatter_reduce(node: Node, x: Expr, axis: int, indices: Expr, source: Expr, how: str, include_self: bool) -> Expr:
    dtype = node.dtype(x)
    start = x
    if not include_self:
        # What is written to starts from what changes nothing.
        neutral = node.neutral(REDUCERS.get(REDUCTIONS[how], REDUCTIONS[how]), dtype)
        start = _scatter(node, x, axis, indices, neutral, "none")
    result = _scatter(node, start, axis, indices, source, REDUCTIONS[how])
    if how != "mean":
        return result
    ones = node.full(1, node.shape(x), dtype)
    base = ones if include_self else _scatter(node, ones, axis, indices, 0, "none")
    count = node.op("maximum", _scatter(node, base, axis, indices, 1, "add"), 1)
    if is_float(dtype):
        return node.op("divide", result, count)
    return node.op("divide", node.op("subtract", result, node.op("mod", result, count)), count)


def _scatter(node: Node, x: Expr, axis: int, indices: Expr, source: Operand, reduction: str) -> Expr:
    dtype, shape = node.dtype(x), node.shape(x)
    if not node.rank(x):
        x = node.reshape(x, (1,))
    if not node.rank(indices):
        indices = node.reshape(indices, (1,))
    updates = _as_large(node, source, indices, dtype)
    work = "int32" if dtype == "bool" and reduction != "none" else dtype
    written = node.op(
        "scatter_elements",
        node.cast(x, work),
        indices,
        node.cast(updates, work),
        axis=node.axis(axis, node.rank(x)),
        reduction=reduction,
    )
    return node.reshape(node.cast(written, dtype), shape)


def _as_large(node: Node, source: Operand, indices: Expr, dtype: str) -> Expr:
    """Return the part of the source that the indices are for, or one number for all of them."""
    if not isinstance(source, Expr):
        return node.full(source, node.shape(indices), dtype)
    source = node.cast(source, dtype)
    if not node.rank(source):
        source = node.reshape(source, (1,))
    for axis, size in enumerate(node.shape(indices)):
        source = node.slice(source, axis, 0, size)
    return source


@converter("aten.col2im.default")
def col2im(
    node: Node,
    x: Expr,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
) -> Expr:
    """Sum columns of windows in the planes that the windows were taken from."""
    planes = node.require_all_fixed(size, "a size of its result")
    out = [
        (planes[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(len(planes))
    ]
    table = window_table(planes, out, kernel, strides, padding, dilation)
    *batch, rows, columns = node.shape(x)
    taps = int(np.prod(kernel))
    channels = node.require_fixed(rows, "the number of rows") // taps
    moved = node.reshape(x, (*batch, channels, taps * columns))  # window positions run slowest in the table's columns
    places = table.T.reshape(-1)
    kept = np.flatnonzero(places >= 0)
    zeros = node.full(0, (int(np.prod(planes)), *batch, channels), node.dtype(x))
    updates = node.op("take", node.to_front(moved, [node.rank(moved) - 1]), kept, axis=0)
    added = node.op("scatter_nd", zeros, places[kept][:, None], updates, reduction="add")
    return node.reshape(node.from_front(added, [node.rank(added) - 1]), node.result.shape)


@converter("aten.masked_scatter.default")
def masked_scatter(node: Node, x: Expr, mask: Expr, source: Expr) -> Expr:
    """Write the n-th element of the source where the mask holds for the n-th time."""
    shape = node.result.shape
    x, mask = node.broadcast_to(x, shape), node.broadcast_to(mask, shape)
    order = node.op("cumsum", node.flat(node.cast(mask, "int64")), axis=0, exclusive=True)
    last = node.op("subtract", node.expr(source.tensor_type.numel, "int64"), 1)
    taken = node.op("take", node.flat(source), node.op("minimum", order, last))
    return node.op("where", mask, node.reshape(taken, shape), x)


@converter("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    node: Node,
    table: Expr,
    indices: Expr,
    offsets: Expr,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Expr | None,
    include_last: bool,
    padding: int,
) -> list[Expr | None]:
    """Compute sums (mode 0), means (1) or maxima (2) of rows; a bag goes from one offset to the next."""
    if any(node.is_used(index) for index in (1, 2, 3)):
        node.reject("an output for the backward pass is used, which is not supported")
    bags, width = node.result.shape
    rows, dtype = node.op("take", table, indices), node.dtype(table)
    kept = node.op("not_equal", indices, padding)
    if weights is not None:
        rows = node.op("multiply", rows, node.unsqueeze(weights, 1))
    neutral = -float("inf") if mode == 2 else 0
    rows = node.op("where", node.unsqueeze(kept, 1), rows, node.full(neutral, (), dtype))
    bag = _bag_of(node, indices, offsets)
    start, how = node.full(neutral, (bags, width), dtype), "max" if mode == 2 else "add"
    result = node.op("scatter_nd", start, bag, rows, reduction=how)
    if mode == 0:
        return [result, None, None, None]
    none = node.full(0, (bags, 1), dtype)
    ones = node.unsqueeze(node.cast(kept, dtype), 1)
    count = node.op("scatter_nd", none, bag, ones, reduction="add")
    if mode == 1:
        return [node.op("divide", result, node.op("maximum", count, 1)), None, None, None]
    return [node.op("where", node.op("equal", count, 0), node.full(0, (), dtype), result), None, None, None]


def _bag_of(node: Node, indices: Expr, offsets: Expr) -> Expr:
    """Return the bag of each index, (indices, 1): how many bags have begun by then, less one."""
    (count,) = node.shape(indices)
    marks = node.full(0, (count + 1,), "int64")  # the last bags may be empty, and begin behind all indices
    ones, places = node.full(1, node.shape(offsets), "int64"), node.unsqueeze(offsets, 1)
    begun = node.op("cumsum", node.op("scatter_nd", marks, places, ones, reduction="add"), axis=0)
    return node.reshape(node.op("subtract", node.slice(begun, 0, 0, count), 1), (count, 1))
