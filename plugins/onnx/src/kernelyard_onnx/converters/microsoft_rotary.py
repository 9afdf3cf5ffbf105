"""Rotary position embeddings (domain com.microsoft): pairs of a head's elements rotated by an angle of its position.

Tables (positions, width / 2) have the cosines and sines of all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.microsoft_heads import heads_of, join_heads, steps
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

IN_CHUNKS, INTERLEAVED = 0, 1  # the values of mrope_layout


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: Node) -> Expr:
    positions = node.input(1)

    def at(batch: Dim, length: Dim) -> Expr:
        if dims.product(node.shape(positions)) != 1:
            return positions
        first = node.reshape(node.cast(positions, "int64"), (1, 1))  # where the first element is
        return node.broadcast_to(node.op("add", steps(node, length, 1, 2), first), (batch, length))

    return _embed(node, lambda table, batch, length: _rows(node, table, at(batch, length)))


@converter("MRotaryEmbedding", domain=MICROSOFT)
def multimodal_rotary_embedding(node: Node) -> Expr:
    """Turn each pair by one of three positions: in time, height or width, as its place in the head says."""
    positions, layout = node.input(1), node.attr("mrope_layout", IN_CHUNKS)
    sections = tuple(node.require_attr("mrope_section"))

    def look_up(table: Expr, batch: Dim, length: Dim) -> Expr:
        parts = [_rows(node, table, node.select(positions, 0, axis)) for axis in range(3)]
        half = node.require_fixed(node.shape(table)[1], "size of its cache")
        stream = _streams(node, sections, half, layout)
        result = parts[0]
        for axis in (1, 2):
            result = node.op("where", stream == axis, parts[axis], result)
        return result

    return _embed(node, look_up)


def _streams(node: Node, sections: Sequence[int], half: int, layout: int) -> np.ndarray:
    """Return which of the three positions turns each pair."""
    if len(sections) != 3 or sum(sections) != half:
        node.reject(f"its mrope_section {sections} does not share the {half} columns of its cache")
    if layout == IN_CHUNKS:
        return np.repeat(np.arange(3), sections)
    if layout != INTERLEAVED:
        node.reject(f"its mrope_layout {layout} is unknown")
    stream = np.zeros(half, np.int64)
    for axis in (1, 2):
        stream[axis : 3 * sections[axis] : 3] = axis
    return stream


@converter("GemmaRotaryEmbedding", domain=MICROSOFT)
def gemma_rotary_embedding(node: Node) -> Sequence[Expr]:
    """Rotate queries and keys, given with their rotated halves, by given angles (batch, length, size)."""
    dtype = node.dtype(node.input(1))
    sine, cosine = (node.unsqueeze(node.cast(node.op(op, node.input(0)), dtype), 1) for op in ("sin", "cos"))

    def combine(x: Expr, other: Expr) -> Expr:
        return node.op("add", node.op("multiply", x, cosine), node.op("multiply", other, sine))

    return [combine(node.input(1), node.input(2)), combine(node.input(3), node.input(4))]


LookUp = Callable[[Expr, Dim, Dim], Expr]
"""`look_up(table, batch, length)`: rows of a table (batch, length, width / 2)."""


def _embed(node: Node, look_up: LookUp) -> Expr:
    """Turn the input (batch, heads, length, size) or (batch, length, heads * size), as the tables are looked up.

    The attribute scale is not read: no kernel of onnxruntime reads it either.
    """
    x, tables = node.input(0), (node.input(2), node.input(3))
    half = node.shape(tables[0])[1]
    width = node.attr("rotary_embedding_dim", 0) or 2 * node.require_fixed(half, "size of its cache")
    is_flat = node.rank(x) == 3
    if is_flat:
        whole = node.require_fixed(node.shape(x)[2], "width of its heads")
        x = heads_of(node, x, node.attr("num_heads", 0) or whole // width)
    batch, _, length, _ = node.shape(x)
    cosine, sine = (look_up(table, batch, length) for table in tables)
    result = rotate_by(node, x, (cosine, sine), width, bool(node.attr("interleaved", 0)))
    return join_heads(node, result) if is_flat else result


def _rows(node: Node, table: Expr, positions: Expr) -> Expr:
    return node.op("take", table, positions, axis=0)


def rotate(node: Node, x: Expr, positions: Expr, tables: tuple[Expr, Expr], width: int, interleaved: bool) -> Expr:
    """Return `rotate_by` the angles of positions (batch, length)."""
    cosine, sine = (_rows(node, table, positions) for table in tables)
    return rotate_by(node, x, (cosine, sine), width, interleaved)


def rotate_by(node: Node, x: Expr, angles: tuple[Expr, Expr], width: int, interleaved: bool) -> Expr:
    """Return the first `width` elements of each head rotated in pairs: neighbours, or those of the two halves.

    x: (batch, heads, length, size). angles: cosines and sines (batch, length, width / 2).
    """
    batch, count, length, size = node.shape(x)
    half = width // 2
    cosine, sine = (node.reshape(node.slice(table, 2, 0, half), (batch, 1, length, half)) for table in angles)
    part = node.slice(x, 3, 0, width) if size != width else x
    if interleaved:
        pairs = node.reshape(part, (batch, count, length, half, 2))
        a, b = (node.reshape(node.slice(pairs, 4, i, i + 1), (batch, count, length, half)) for i in (0, 1))
    else:
        a, b = node.slice(part, 3, 0, half), node.slice(part, 3, half, width)
    first = node.op("subtract", node.op("multiply", a, cosine), node.op("multiply", b, sine))
    second = node.op("add", node.op("multiply", b, cosine), node.op("multiply", a, sine))
    if interleaved:
        columns = [node.reshape(y, (batch, count, length, half, 1)) for y in (first, second)]
        rotary = node.reshape(node.op("concat", *columns, axis=4), (batch, count, length, width))
    else:
        rotary = node.op("concat", first, second, axis=3)
    return rotary if size == width else node.op("concat", rotary, node.slice(x, 3, width, size), axis=3)
