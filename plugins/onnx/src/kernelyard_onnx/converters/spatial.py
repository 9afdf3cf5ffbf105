"""Sampling of spatial data at computed positions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter

MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}
# Keys' kernel with a = -0.75: how much the taps at -1, 0, 1, 2 weigh at a distance of t from tap 0.
CUBIC = -0.75


@dataclass(frozen=True)
class Tap:
    """Along one axis: an integer position (as a float tensor) for each output, and its weight (None: 1)."""

    position: Expr
    weight: Expr | None


@converter("GridSample", since=16)
def grid_sample(node: Node) -> Expr:
    """X (N, C, spatial...), grid (N, out..., axes) with positions from -1 to 1, the last axis (x) first.

    The dtypes may differ: positions are computed in the grid's, the result in X's (of integers, in the grid's).
    """
    x, grid = node.input(0), node.input(1)
    rank = node.rank(x) - 2
    mode = MODES.get(node.attr("mode", "linear")) or node.reject(f"its mode {node.attr('mode')!r} is unknown")
    batch, channels, *spatial = node.shape(x)
    outputs = node.shape(grid)[1:-1]
    count = dims.product(outputs)
    flat = node.reshape(grid, (batch, count, rank))
    taps = [
        _taps(node, _coordinate(node, flat, rank - 1 - axis, size), size, mode) for axis, size in enumerate(spatial)
    ]
    dtype = node.dtype(x) if is_float(node.dtype(x)) else node.dtype(grid)
    data = node.cast(node.reshape(x, (batch, channels, dims.product(spatial))), dtype)
    values = node.cast(sample(node, data, taps, spatial, (batch, channels, count)), node.dtype(x))
    return node.reshape(values, (batch, channels, *outputs))


def sample(node: Node, data: Expr, taps: Sequence[Sequence[Tap]], spatial: Sequence[Dim], shape: Sequence[Dim]) -> Expr:
    """Sum data (N, C, product of spatial), weighted, over the taps of each axis: `shape`, (N, C, count)."""
    total: Expr | None = None
    for corner in itertools.product(*taps):
        value = _weight_corner(node, data, corner, spatial, shape)
        total = value if total is None else node.op("add", total, value)
    return node.reject("it has no taps") if total is None else total


def linear_taps(node: Node, coordinate: Expr, size: Dim) -> list[Tap]:
    """Return the two elements around each position along an axis, in elements."""
    return _taps(node, coordinate, size, "linear")


def _coordinate(node: Node, flat: Expr, index: int, size: Dim) -> Expr:
    """Return positions along one axis, in elements: (N, count)."""
    unit = node.select(flat, 2, index)
    length = node.expr(size, node.dtype(unit))
    if node.attr("align_corners", 0):  # -1 and 1 are the centres of the first and last element
        return node.op("multiply", node.op("add", unit, 1), node.op("multiply", node.op("subtract", length, 1), 0.5))
    scaled = node.op("multiply", node.op("add", unit, 1), length)
    return node.op("multiply", node.op("subtract", scaled, 1), 0.5)


def _taps(node: Node, coordinate: Expr, size: Dim, mode: str) -> list[Tap]:
    padding = node.attr("padding_mode", "zeros")
    if padding != "zeros" and mode != "cubic":
        coordinate = _move_inside(node, coordinate, size, padding)
    if mode == "nearest":
        return [Tap(node.op("round", coordinate), None)]
    first = node.op("floor", coordinate)
    t = node.op("subtract", coordinate, first)
    if mode == "linear":
        other = node.op("subtract", node.full(1, (), node.dtype(t)), t)
        return [Tap(first, other), Tap(node.op("add", first, 1), t)]
    return [Tap(node.op("add", first, step), _cubic(node, t, step)) for step in (-1, 0, 1, 2)]


def _cubic(node: Node, t: Expr, step: int) -> Expr:
    """Evaluate Keys' cubic kernel at distance |t - step|."""
    a = CUBIC
    distance = node.op("abs", node.op("subtract", t, step))
    coefficients = (a + 2, -(a + 3), 0.0, 1.0) if step in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
    value = node.full(coefficients[0], (), node.dtype(t))
    for coefficient in coefficients[1:]:
        value = node.op("add", node.op("multiply", value, distance), coefficient)
    return value


def _move_inside(node: Node, position: Expr, size: Dim, padding: str) -> Expr:
    """Move positions into the data: to the nearest edge, or mirrored at the edges."""
    last = node.op("subtract", node.expr(size, node.dtype(position)), 1)
    if padding == "reflection":
        half = 0.0 if node.attr("align_corners", 0) else 0.5
        # Mirrored between low = -half and low + span: a triangle wave.
        span = node.op("add", last, 2 * half)
        distance = node.op("abs", node.op("add", position, half))
        around = node.op("subtract", span, node.op("abs", node.op("subtract", _modulo(node, distance, span), span)))
        position = node.op("subtract", around, half)
    return node.op("minimum", node.op("maximum", position, 0), last)


def _modulo(node: Node, value: Expr, span: Expr) -> Expr:
    """`value` modulo twice the span, which may be 0 (one element, corners aligned)."""
    twice = node.op("maximum", node.op("multiply", span, 2), 1e-6)
    return node.op("subtract", value, node.op("multiply", node.op("floor", node.op("divide", value, twice)), twice))


def _weight_corner(node: Node, data: Expr, corner: Sequence[Tap], spatial: Sequence[Dim], shape: Sequence[Dim]) -> Expr:
    """Return the elements at one corner of each cell, times its weight, 0 outside."""
    padding = node.attr("padding_mode", "zeros")
    index: Expr | None = None
    weight: Expr | None = None
    for tap, size in zip(corner, spatial, strict=True):
        position, length = tap.position, node.expr(size, "int64")
        if padding != "zeros":
            position = _move_inside(node, position, size, padding)
        else:
            outside = node.op(
                "logical_or",
                node.op("less", position, 0),
                node.op("greater_equal", position, node.expr(size, node.dtype(position))),
            )
            own = node.full(1, (), node.dtype(position)) if tap.weight is None else tap.weight
            kept = node.op("where", outside, node.full(0, (), node.dtype(own)), own)
            tap = Tap(_move_inside(node, position, size, "border"), kept)
            position = tap.position
        steps = node.cast(position, "int64")
        index = steps if index is None else node.op("add", node.op("multiply", index, length), steps)
        if tap.weight is not None:
            weight = tap.weight if weight is None else node.op("multiply", weight, tap.weight)
    if index is None:
        node.reject("it has no spatial axes")
    batch, _, count = shape
    values = node.op("gather_elements", data, node.broadcast_to(node.reshape(index, (batch, 1, count)), shape), axis=2)
    if weight is None:
        return values
    return node.op("multiply", values, node.cast(node.reshape(weight, (batch, 1, count)), node.dtype(values)))
