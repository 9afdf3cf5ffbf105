"""Scaled dot-product attention, decomposed into matmuls and a softmax, which patterns of attention match."""

from __future__ import annotations

import math

import numpy as np

from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten.scaled_dot_product_attention.default")
def attention(
    node: Node,
    queries: Expr,
    keys: Expr,
    values: Expr,
    mask: Expr | None,
    dropout: float,
    causal: bool,
    scale: float | Expr | None = None,
    enable_gqa: bool = False,
) -> Expr:
    if dropout:
        node.reject("dropout is active: call model.eval()")
    if enable_gqa or node.shape(keys)[-3:-2] not in (node.shape(queries)[-3:-2], (1,)):
        keys, values = (node.repeat_heads(each, node.shape(queries)[-3]) for each in (keys, values))
    if scale is None:
        scale = 1 / math.sqrt(node.require_fixed(node.shape(queries)[-1], "the size of a head"))
    rank = node.rank(keys)
    transposed = node.permute(keys, [*range(rank - 2), rank - 1, rank - 2])
    scores = node.op("matmul", queries, transposed)
    scores = node.op("multiply", scores, node.cast(node.expr(scale, node.dtype(scores)), node.dtype(scores)))
    visible = _causal_mask(node, scores) if causal else mask
    if visible is None:
        return node.op("matmul", node.op("nn.softmax", scores, axis=node.rank(scores) - 1), values)
    return node.op("matmul", _masked_softmax(node, scores, visible), values)


@converter("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    node: Node,
    queries: Expr,
    keys: Expr,
    values: Expr,
    dropout: float,
    causal: bool,
    mask: Expr | None = None,
    scale: float | None = None,
) -> list[Expr | None]:
    return [attention(node, queries, keys, values, mask, dropout, causal, scale), None]


def _causal_mask(node: Node, scores: Expr) -> Expr:
    rows, columns = node.shape(scores)[-2:]
    row = node.reshape(node.op("arange", count=rows), (rows, 1))
    return node.op("less_equal", node.op("arange", count=columns), row)


def _masked_softmax(node: Node, scores: Expr, mask: Expr) -> Expr:
    """Compute the softmax over what a mask lets through, or with a bias; rows that see nothing are zero."""
    axis, dtype = node.rank(scores) - 1, node.dtype(scores)
    hidden = node.cast(node.expr(np.asarray(-np.inf), dtype), dtype)
    if node.dtype(mask) == "bool":
        scores = node.op("where", mask, scores, hidden)
    else:
        bias = node.cast(mask, dtype)
        scores, mask = node.op("add", scores, bias), node.op("not_equal", bias, hidden)
    some = node.op("any", mask, axes=(node.rank(mask) - 1,), keepdims=True)
    return node.op("where", some, node.op("nn.softmax", scores, axis=axis), node.full(0, (), dtype))
