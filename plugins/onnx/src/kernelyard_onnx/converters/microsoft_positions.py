"""Biases of attention by the distance of query and key (domain com.microsoft)."""

from __future__ import annotations

import math
from functools import partial

from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.microsoft_heads import heads_of, steps
from kernelyard_onnx.converters.microsoft_packed import restore_padding
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

microsoft = partial(converter, domain=MICROSOFT)


@microsoft("RelativePositionBias")
def relative_position_bias(node: Node) -> Expr:
    """Look the distances of queries and keys up in T5's table, whose buckets widen with the distance.

    The table is declared (buckets, heads), and stored the other way round.
    """
    table = node.input(0)
    count, heads = (node.require_fixed(dim, "size of its table") for dim in node.shape(table))
    rows, keys = (node.dims(node.input(index), "length")[0] for index in (1, 2))
    distance = node.op("subtract", steps(node, keys, 1, 2), steps(node, rows, 0, 2))
    bucket = _bucket(node, distance, count)
    bias = node.op("take", node.reshape(table, (heads, count)), bucket, axis=1)
    return node.reshape(bias, (1, heads, rows, keys))


def _bucket(node: Node, distance: Expr, count: int) -> Expr:
    """Return one bucket for each short distance, and wider ones up to the largest: half of them for keys ahead."""
    ahead = None
    if node.attr("is_bidirectional", 0):
        count //= 2
        ahead = node.op("multiply", node.cast(node.op("greater", distance, 0), "int64"), count)
        steps_back = node.op("abs", distance)
    else:
        steps_back = node.op("negative", node.op("minimum", distance, 0))
    exact = count // 2
    longest = int(node.require_attr("max_distance"))
    ratio = node.op("divide", node.op("maximum", node.cast(steps_back, "float32"), 1.0), float(exact))
    share = node.op("divide", node.op("log", ratio), math.log(longest / exact))
    wide = node.cast(node.op("multiply", share, float(count - exact)), "int64")
    wide = node.op("minimum", node.op("add", wide, exact), count - 1)
    bucket = node.op("where", node.op("less", steps_back, exact), steps_back, wide)
    return bucket if ahead is None else node.op("add", bucket, ahead)


@microsoft("GatedRelativePositionBias")
def gated_relative_position_bias(node: Node) -> Expr:
    """Scale a bias (1, heads, rows, keys) for each row by a gate that its query decides."""
    query, shift, bias, weight, offset, scale = (node.input(index) for index in range(6))
    query = node.op("add", query, shift)
    if node.optional(6) is not None:  # its tokens are packed
        query = restore_padding(node, query, node.input(6))
    heads = heads_of(node, query, int(node.require_attr("num_heads")))
    batch, count, length, _ = node.shape(heads)
    product = node.op("add", node.op("matmul", heads, weight), offset)
    width = node.require_fixed(node.shape(weight)[1], "width of its gates")
    pairs = node.reshape(product, (batch, count, length, 2, width // 2))
    gates = node.op("sigmoid", node.op("sum", pairs, axes=(4,), keepdims=False))
    update, reset = (node.slice(gates, 3, index, index + 1) for index in (0, 1))
    inner = node.op("subtract", node.op("multiply", reset, scale), 1.0)
    gate = node.op("add", node.op("multiply", update, inner), 2.0)
    return node.op("multiply", gate, bias)
