"""Heads of attention: queries, keys and values by head, and the positions in them."""

from __future__ import annotations

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node


def heads_of(node: Node, x: Expr, count: int) -> Expr:
    """(batch, sequence, heads * size) -> (batch, heads, sequence, size)."""
    batch, length, width = node.shape(x)
    size = node.require_fixed(width, "width of its heads")
    if size % count:
        node.reject(f"{size} channels cannot be shared by {count} heads")
    return node.permute(node.reshape(x, (batch, length, count, size // count)), (0, 2, 1, 3))


def join_heads(node: Node, x: Expr) -> Expr:
    """(batch, heads, sequence, size) -> (batch, sequence, heads * size)."""
    batch, count, length, size = node.shape(x)
    return node.reshape(node.permute(x, (0, 2, 1, 3)), (batch, length, count * size))


def steps(node: Node, count: Dim, axis: int, rank: int) -> Expr:
    """0, 1, 2, ... along one axis."""
    return node.along(node.op("arange", start=0, step=1, count=count, dtype="int64"), axis, rank)
