"""Batches without padding: tokens of all sequences one after the other, as onnxruntime's packing mode writes them.

`token_offset` (batch, sequence) has the places of all tokens in the padded batch, then those of the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.microsoft_attention import Weighing, attend, parts_of_product, scale_of
from kernelyard_onnx.converters.microsoft_heads import heads_of, join_heads, steps
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

microsoft = partial(converter, domain=MICROSOFT)


@microsoft("RemovePadding")
def remove_padding(node: Node) -> Sequence[Expr]:
    """Return the tokens, their places and those of the padding, the begins of sequences, and the longest length."""
    x, counts = node.input(0), node.cast(node.input(1), "int64")
    batch, length, width = node.shape(x)
    every = batch * length
    is_token = node.op("less", steps(node, length, 1, 2), node.reshape(counts, (batch, 1)))
    flags = node.cast(node.reshape(is_token, (every,)), "int64")
    total = node.op("sum", flags, axes=(0,), keepdims=True)
    (tokens,) = node.sizes(total, "number of tokens")
    earlier = node.op("cumsum", flags, axis=0, exclusive=True)
    paddings = node.op("add", total, node.op("subtract", steps(node, every, 0, 1), earlier))
    place = node.op("where", node.reshape(is_token, (every,)), earlier, paddings)
    offsets = node.op("invert_permutation", place)
    packed = node.op("take", node.reshape(x, (every, width)), node.slice(offsets, 0, 0, tokens), axis=0)
    ends = node.concat([node.full(0, (1,), "int64"), node.op("cumsum", counts, axis=0)], 0)
    longest = node.op("max", counts, axes=(0,), keepdims=True)
    numbers = (node.reshape(offsets, (batch, length)), ends, longest)
    return [packed, *(node.cast(number, "int32") for number in numbers)]


@microsoft("RestorePadding")
def with_padding(node: Node) -> Expr:
    return restore_padding(node, node.input(0), node.input(1))


def restore_padding(node: Node, tokens: Expr, offsets: Expr) -> Expr:
    """(tokens, width) -> (batch, sequence, width), zeros in the padding."""
    batch, length = node.shape(offsets)
    count, width = node.shape(tokens)
    place = node.op("invert_permutation", node.cast(node.reshape(offsets, (batch * length,)), "int64"))
    last = node.op("minimum", place, node.expr(count - 1, "int64"))
    is_token = node.op("less", place, node.expr(count, "int64"))
    rows = node.op("take", tokens, last, axis=0)
    zero = node.full(0, (), node.dtype(tokens))
    shown = node.op("where", node.reshape(is_token, (batch * length, 1)), rows, zero)
    return node.reshape(shown, (batch, length, width))


@microsoft("PackedAttention")
def packed_attention(node: Node) -> Expr:
    product = node.op("add", node.op("matmul", node.input(0), node.input(1)), node.input(2))
    offsets = node.input(3)
    whole = restore_padding(node, product, offsets)
    return _attention(node, parts_of_product(node, whole), offsets, node.input(4), node.optional(5))


@microsoft("PackedMultiHeadAttention")
def packed_multi_head_attention(node: Node) -> Expr:
    query, key, value, bias = node.input(0), node.optional(1), node.optional(2), node.optional(3)
    if key is None or value is None:
        tokens, heads, _, size = node.shape(query)
        given = [node.reshape(node.select(query, 2, index), (tokens, heads * size)) for index in range(3)]
    else:
        given = [query, key, value]
    if bias is not None:
        end = 0
        for index, part in enumerate(given):
            begin, end = end, end + node.require_fixed(node.shape(part)[1], "width of its heads")
            given[index] = node.op("add", part, node.slice(bias, 0, begin, end))
    offsets = node.input(4)
    return _attention(
        node, [restore_padding(node, part, offsets) for part in given], offsets, node.input(5), node.optional(6)
    )


def _attention(node: Node, parts: Sequence[Expr], offsets: Expr, ends: Expr, bias: Expr | None) -> Expr:
    """Return attention within each sequence, (tokens, width), of queries, keys and values (batch, sequence, width)."""
    batch, length = node.shape(offsets)
    q, k, v = (heads_of(node, part, node.require_attr("num_heads")) for part in parts)
    counts = node.op("subtract", node.slice(ends, 0, 1, batch + 1), node.slice(ends, 0, 0, batch))
    is_token = node.op("less", steps(node, length, 3, 4), node.reshape(node.cast(counts, "int64"), (batch, 1, 1, 1)))
    how = Weighing(scale_of(node), biases=() if bias is None else (bias,), visible=is_token)
    y = join_heads(node, attend(node, q, k, v, how))
    return _tokens_of(node, y, offsets, node.shape(node.input(0))[0])


def _tokens_of(node: Node, x: Expr, offsets: Expr, count: Dim) -> Expr:
    every = dims.product(node.shape(offsets))
    places = node.slice(node.reshape(offsets, (every,)), 0, 0, count)
    return node.op("take", node.reshape(x, (every, node.shape(x)[2])), places, axis=0)
