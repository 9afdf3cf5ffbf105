"""Slice and Pad, with bounds that may depend on sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.bounds import at_least, maximum, minimum
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter

# Exporters write "to the end" as some very large number. No axis is this long.
TO_THE_END = 10**9


@converter("Slice")
def slice_by_attributes(node: Node) -> Expr:
    starts, ends = node.require_attr("starts"), node.require_attr("ends")
    return _slice(node, starts, ends, node.attr("axes"), None)


@converter("Slice", since=10)
def slice_by_inputs(node: Node) -> Expr:
    axes, steps = node.optional(3), node.optional(4)
    starts, ends = (node.builder.known.dims(node.input(index)) for index in (1, 2))
    if starts is None or ends is None:
        return _slice_by_data(node, axes, steps)
    return _slice(
        node,
        starts,
        ends,
        None if axes is None else node.ints(axes, "axes"),
        None if steps is None else node.ints(steps, "steps"),
    )


def _slice_by_data(node: Node, axes: Expr | None, steps: Expr | None) -> Expr:
    """Return a slice whose bounds are brought inside their axes by the program."""
    x = node.input(0)
    starts, ends = (node.cast(node.input(index), "int64") for index in (1, 2))
    count = node.require_fixed(node.shape(starts)[0], "number of its axes")
    where = node.axes(range(count) if axes is None else node.ints(axes, "axes"), node.rank(x))
    strides = node.ints(steps, "steps") if steps is not None else (1,) * count
    if not len(where) == len(strides) == count or len(set(where)) != count or 0 in strides:
        node.reject("its starts, ends, axes and steps do not fit together")
    size = node.numbers([node.shape(x)[axis] for axis in where])
    backwards = np.array([int(stride < 0) for stride in strides])
    starts, ends = (
        node.op("where", node.op("less", bound, 0), node.op("add", bound, size), bound) for bound in (starts, ends)
    )
    last = node.op("subtract", size, backwards)
    begin = node.op("minimum", node.op("maximum", starts, 0), last)
    stop = node.op("minimum", node.op("maximum", ends, -backwards), last)
    # How many are taken is a size of its own, so that the result's type is as simple as can be.
    span = node.op("maximum", node.op("multiply", node.op("subtract", stop, begin), np.sign(strides)), 0)
    lengths = node.sizes(node.op("divide", node.op("add", span, np.abs(strides) - 1), np.abs(strides)), "lengths")
    # One more than the bounds, since a walk backwards through nothing begins at -1.
    begins = [bound - 1 for bound in node.sizes(node.op("add", begin, 1), "bounds")]
    ends = [first + _span(length, stride) for first, length, stride in zip(begins, lengths, strides, strict=True)]
    sliced = _strided_slice(node, x, sorted(zip(where, begins, ends, strides, strict=True)))
    found = dict(zip(where, lengths, strict=True))
    return node.reshape(sliced, [found.get(axis, size) for axis, size in enumerate(node.shape(x))])


def _span(length: Dim, stride: int) -> Dim:
    """Return how far behind its first index a walk of so many steps ends; nothing is walked in no steps."""
    return maximum((length - 1) * stride + 1, 0) if stride > 0 else minimum((length - 1) * stride - 1, 0)


def _slice(
    node: Node, starts: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Expr:
    x = node.input(0)
    where = node.axes(range(len(starts)) if axes is None else axes, node.rank(x))
    strides = tuple(steps or (1,) * len(starts))
    if not len(starts) == len(ends) == len(where) == len(strides):
        node.reject("its starts, ends, axes and steps have different lengths")
    if len(set(where)) != len(where) or 0 in strides:
        node.reject("its axes have duplicates, or a step is 0")
    shape = node.shape(x)
    cuts: list[tuple[int, Dim, Dim, int]] = []
    for axis, start, end, stride in sorted(zip(where, starts, ends, strides, strict=True)):
        size = shape[axis]
        if size == 0:  # nothing to cut, and no index to begin at
            continue
        begin, stop = _bounds(start, end, stride, size)
        if (begin, stop, stride) != (0, size, 1):
            cuts.append((axis, begin, stop, stride))
    return _strided_slice(node, x, cuts)


def _strided_slice(node: Node, x: Expr, cuts: Sequence[tuple[int, Dim, Dim, int]]) -> Expr:
    """`x` cut along axes in ascending order, each with where it begins and ends and its stride."""
    if not cuts:
        return x
    axes, begins, stops, strides = zip(*cuts, strict=True)
    return node.op("strided_slice", x, axes=axes, begin=begins, end=stops, strides=strides)


def _bounds(start: Dim, end: Dim, stride: int, size: Dim) -> tuple[Dim, Dim]:
    """First index and the index that ends the walk, inside the axis."""
    if stride > 0:
        begin, stop = (_clamp(_from_front(bound, size), 0, size) for bound in (start, end))
        return begin, maximum(stop, begin)
    begin = _clamp(_from_front(start, size), 0, size - 1)
    stop = _clamp(_from_front(end, size), -1, size - 1)
    return begin, minimum(stop, begin)


def _from_front(index: Dim, size: Dim) -> Dim:
    """Return an index counted from the front; those far outside become the nearest end.

    One that may be negative for some sizes is counted from the end just for these.
    """
    if isinstance(index, int) and abs(index) >= TO_THE_END:
        return size if index > 0 else -1
    if at_least(index, 0):
        return index
    if at_least(index * -1, 1):
        return index + size
    is_negative = minimum(maximum(index * -1, 0), 1)
    return index + is_negative * size


def _clamp(index: Dim, low: Dim, high: Dim) -> Dim:
    return minimum(maximum(index, low), high)  # of an empty axis, walked backwards: high, which is below low


@converter("Pad")
def pad_node(node: Node) -> Expr:
    x, value, axes = node.input(0), node.optional(2), node.optional(3)
    attribute = node.attr("pads", node.attr("paddings"))  # as opset 1 calls it
    given: Sequence[Dim] = node.sizes(node.input(1), "pads") if attribute is None else attribute
    number = float(node.attr("value", 0.0) if value is None else node.scalar(value, "constant_value"))
    if axes is None:
        return pad(node, x, given, number)
    rank, count = node.rank(x), len(given) // 2
    pads: list[Dim] = [0] * (2 * rank)
    for position, axis in enumerate(node.axes(node.ints(axes, "axes"), rank)):
        pads[axis], pads[rank + axis] = given[position], given[count + position]
    return pad(node, x, pads, number)


def pad(node: Node, x: Expr, pads: Sequence[Dim], value: float) -> Expr:
    """Pad each axis before and behind; negative amounts cut off."""
    rank, mode = node.rank(x), node.attr("mode", "constant")
    if len(pads) != 2 * rank:
        node.reject(f"it has {len(pads)} pads for {rank} dimensions")
    for axis in range(rank):
        before, behind = (
            amount if isinstance(amount, int) and amount < 0 else 0 for amount in (pads[axis], pads[rank + axis])
        )
        if before or behind:
            x = node.slice(x, axis, -before, node.shape(x)[axis] + behind)
    amounts = tuple(amount if not isinstance(amount, int) else max(amount, 0) for amount in pads)
    return x if not any(amounts) else node.op("pad", x, pads=amounts, mode=mode, value=value)
