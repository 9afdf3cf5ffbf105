"""Attention, written as the products and the softmax that it is made of."""

from __future__ import annotations

import math

import numpy as np

from kernelyard.plugins.api import Call
from kernelyard_onnx_export.graph_writer import GraphWriter


def attention(writer: GraphWriter, call: Call) -> str:
    """Write nn.attention or nn.attention_bias: softmax(q @ k^T * scale + bias) @ v over heads, (B, S, N, H)."""
    queries, keys, values = (_heads_first(writer, call, place) for place in range(3))
    dtype = call.tensor_type.dtype
    scores = writer.node("MatMul", queries, writer.node("Transpose", keys, perm=(0, 1, 3, 2)))
    scores = writer.node("Mul", scores, _scale(writer, call))
    if len(call.args) == 4:
        scores = writer.node("Add", scores, writer.name(call.args[3]))
    if call.attrs["causal"] != "none":
        scores = writer.node("Where", _visible(writer, call), scores, writer.number(-np.inf, dtype))
    mixed = writer.node("MatMul", writer.node("Softmax", scores, axis=-1), values)
    return writer.node("Transpose", mixed, perm=(0, 2, 1, 3))


def _scale(writer: GraphWriter, call: Call) -> str:
    """Return what scores are multiplied by: by default one over the root of the size of a head."""
    size, scale, dtype = call.args[0].tensor_type.shape[3], call.attrs["scale"], call.tensor_type.dtype
    if scale is not None:
        return writer.number(scale, dtype)
    if isinstance(size, int):
        return writer.number(1 / math.sqrt(size), dtype)
    root = writer.node("Sqrt", writer.cast(writer.size(size), "float32"))
    return writer.cast(writer.node("Reciprocal", root), dtype)


def _heads_first(writer: GraphWriter, call: Call, place: int) -> str:
    """Return an operand as (B, N, S, H), each head of keys and values as often as query heads share it."""
    x = writer.node("Transpose", writer.name(call.args[place]), perm=(0, 2, 1, 3))
    batch, rows, heads, size = call.args[place].tensor_type.shape
    wanted = call.args[0].tensor_type.shape[2]
    if heads == wanted:
        return x
    spread = writer.node("Unsqueeze", x, writer.integers([2]))
    spread = writer.node("Expand", spread, writer.shape((batch, heads, wanted // heads, rows, size)))
    return writer.node("Reshape", spread, writer.shape((batch, wanted, rows, size)))


def _visible(writer: GraphWriter, call: Call) -> str:
    """Return which key (column) each query (row) sees: (S, T), counted from the start or from the end."""
    rows, columns = (call.args[place].tensor_type.shape[1] for place in (0, 1))
    ones = writer.node("Expand", writer.number(1, "int64"), writer.shape((rows, columns)))
    ahead = columns - rows if call.attrs["causal"] == "bottom_right" else 0
    offset = writer.node("Squeeze", writer.size(ahead), writer.integers([0]))
    return writer.cast(writer.node("Trilu", ones, offset, upper=0), "bool")
