"""Operators that address elements by index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dims import product
from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Constant, Expr, TensorType, TupleType
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


@converter("Gather")
def gather(node: Node) -> Expr:
    data = node.input(0)
    return node.op("take", data, node.input(1), axis=node.axis(node.attr("axis", 0), node.rank(data)))


@converter("GatherElements", since=11)
def gather_elements(node: Node) -> Expr:
    data = node.input(0)
    return node.op("gather_elements", data, node.input(1), axis=node.axis(node.attr("axis", 0), node.rank(data)))


@converter("GatherND", since=11)
def gather_nd(node: Node) -> Expr:
    _require_vectors(node, node.input(1))
    return node.op("gather_nd", node.input(0), node.input(1), batch_dims=int(node.attr("batch_dims", 0)))


@converter("Scatter", "ScatterElements", since=9)
def scatter_elements(node: Node) -> Expr:
    data, indices, updates = node.require_inputs()
    axis = node.axis(node.attr("axis", 0), node.rank(data))
    return node.op("scatter_elements", data, indices, updates, axis=axis, reduction=node.attr("reduction", "none"))


@converter("ScatterND", since=11)
def scatter_nd(node: Node) -> Expr:
    data, indices, updates = node.require_inputs()
    _require_vectors(node, indices)
    return node.op("scatter_nd", data, indices, updates, reduction=node.attr("reduction", "none"))


def _require_vectors(node: Node, indices: Expr) -> None:
    """Give up where the rank of the result is open, so that the model is compiled for the sizes that come."""
    if node.rank(indices):
        node.require_fixed(node.shape(indices)[-1], "length of its index vectors")


@converter("OneHot", since=9)
def one_hot(node: Node) -> Expr:
    indices, depth, values = node.require_inputs()
    count = int(node.scalar(depth, "depth"))
    if is_float(node.dtype(indices)):
        indices = node.cast(indices, "int64")
    axis = node.axis(node.attr("axis", -1), node.rank(indices) + 1)
    known = node.builder.known.constant(values)
    if known is not None and known.size == 2:
        off, on = (float(item) for item in known.reshape(-1))
        return node.op("one_hot", indices, depth=count, axis=axis, on_value=on, off_value=off, dtype=node.dtype(values))
    hot = node.op("one_hot", indices, depth=count, axis=axis, on_value=1.0, off_value=0.0, dtype="bool")
    off, on = (node.select(values, 0, index) for index in (0, 1))
    return node.op("where", hot, on, off)


@converter("TensorScatter", since=24)
def tensor_scatter(node: Node) -> Expr:
    """Return a cache with an update written to it, at a position of its own in each batch."""
    cache, update, begins = node.input(0), node.input(1), node.optional(2)
    rank = node.rank(cache)
    axis = node.axis(node.attr("axis", -2), rank)
    steps = node.op("arange", start=0, step=1, count=node.shape(update)[axis], dtype="int64")
    places = node.along(steps, axis, rank)
    if begins is not None:
        places = node.op("add", places, node.along(node.cast(begins, "int64"), 0, rank))
    if node.attr("mode", "linear") == "circular":
        places = node.op("mod", places, node.expr(node.shape(cache)[axis], "int64"))
    return node.op("scatter_elements", cache, node.broadcast_to(places, node.shape(update)), update, axis=axis)


@converter("CumProd", since=26)
def cumulative_product(node: Node) -> Expr:
    return _cumulative(node, "cumprod")


@converter("CumSum", since=11)
def cumulative_sum(node: Node) -> Expr:
    return _cumulative(node, "cumsum")


def _cumulative(node: Node, name: str) -> Expr:
    x = node.input(0)
    axis = node.axis(int(node.scalar(node.input(1), "axis")), node.rank(x))
    exclusive, reverse = bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0))
    return node.op(name, x, axis=axis, exclusive=exclusive, reverse=reverse)


@converter("TopK")
def top_k(node: Node) -> Sequence[Expr]:
    """Return the largest elements and their places. How many may be a size, or be known when the program runs only."""
    x = node.input(0)
    axis = node.axis(node.attr("axis", -1), node.rank(x))
    k = node.attr("k")
    if k is None:
        (k,) = node.sizes(node.input(1), "k")
    largest, ordered = bool(node.attr("largest", 1)), bool(node.attr("sorted", 1))
    return node.ops("topk", x, k=k, axis=axis, largest=largest, sorted=ordered)


@converter("Trilu", since=14)
def triangle(node: Node) -> Expr:
    offset = node.optional(1)
    k = 0 if offset is None else int(node.scalar(offset, "k"))
    return node.op("trilu", node.input(0), k=k, upper=bool(node.attr("upper", 1)))


@converter("Compress", since=9)
def compress(node: Node) -> Expr:
    x, axis = node.input(0), node.attr("axis")
    if axis is None:
        x, axis = node.reshape(x, (product(node.shape(x)),)), 0
    (indices,) = _split_rows(node, _non_zero(node, node.input(1)))
    return node.op("take", x, indices, axis=node.axis(axis, node.rank(x)))


def _split_rows(node: Node, table: Expr) -> list[Expr]:
    return [node.select(table, 0, row) for row in range(node.require_fixed(node.shape(table)[0], "rank"))]


@converter("NonZero", since=9)
def non_zero(node: Node) -> Expr:
    return _non_zero(node, node.input(0))


def _non_zero(node: Node, x: Expr) -> Expr:
    value = node.builder.known.constant(x)
    if value is not None:
        return Constant(np.asarray(np.nonzero(np.atleast_1d(value)), np.int64))
    type_ = TensorType((max(node.rank(x), 1), node.new_size()), "int64")
    return node.builder.emit_data_dependent("nonzero", [x], type_, node.origin)


@converter("Unique", since=11)
def unique(node: Node) -> Sequence[Expr]:
    x, axis, count = node.input(0), node.attr("axis"), node.new_size()
    shape = list(node.shape(x))
    at = None if axis is None else node.axis(axis, len(shape))
    whole = product(shape) if at is None else shape[at]
    values = (count,) if at is None else (*shape[:at], count, *shape[at + 1 :])
    each = TensorType((count,), "int64")
    type_ = TupleType((TensorType(values, node.dtype(x)), each, TensorType((whole,), "int64"), each))
    found = node.builder.emit_data_dependent(
        "unique", [x], type_, node.origin, axis=at, sorted=bool(node.attr("sorted", 1))
    )
    return [node.builder.get(found, index) for index in range(4)]


@converter("NonMaxSuppression", since=10)
def non_max_suppression(node: Node) -> Expr:
    boxes, scores = node.input(0), node.input(1)
    defaults = (np.array(0, np.int64), np.array(0, np.float32), np.array(-np.inf, np.float32))
    limits = [node.optional(2 + index) for index in range(3)]
    given = [
        Constant(default) if limit is None else node.reshape(limit, ())
        for limit, default in zip(limits, defaults, strict=True)
    ]
    type_ = TensorType((node.new_size(), 3), "int64")
    centered = bool(node.attr("center_point_box", 0))
    return node.builder.emit_data_dependent(
        "image.non_max_suppression", [boxes, scores, *given], type_, node.origin, center_point_box=centered
    )


@converter("ReverseSequence", since=10)
def reverse_sequence(node: Node) -> Expr:
    x, lengths = node.require_inputs()
    batch, time = (node.axis(node.attr(name, d), node.rank(x)) for name, d in (("batch_axis", 1), ("time_axis", 0)))
    rank = node.rank(x)
    steps = node.op("arange", start=0, step=1, count=node.shape(x)[time], dtype="int64")
    step, length = node.along(steps, time, rank), node.along(node.cast(lengths, "int64"), batch, rank)
    mirrored = node.op("subtract", node.op("subtract", length, 1), step)
    source = node.op("where", node.op("less", step, length), mirrored, step)
    return node.op("gather_elements", x, node.broadcast_to(source, node.shape(x)), axis=time)
