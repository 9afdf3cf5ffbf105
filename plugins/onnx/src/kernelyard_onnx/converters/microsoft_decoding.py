"""Steps of text generation (domain com.microsoft): attention of one new token, and scores that forbid repetition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.converters.microsoft_attention import attend, parts_of_product, weighing
from kernelyard_onnx.converters.microsoft_heads import heads_of, join_heads, steps
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

microsoft = partial(converter, domain=MICROSOFT)


@microsoft("NGramRepeatBlock")
def without_repeated_ngrams(node: Node) -> Expr:
    """Set the score of each token to -inf that would complete an n-gram which the text (batch, length) has already."""
    ids, scores, size = node.input(0), node.input(1), int(node.require_attr("ngram_size"))
    batch, length = node.shape(ids)
    # Filled up in front, a text that is shorter than an n-gram has windows too; none of them is equal to its end.
    padded = node.op("pad", ids, pads=(0, size - 1, 0, 0), mode="constant", value=-1.0)
    is_repeated = node.broadcast_to(Constant(np.array(True)), (batch, length))
    for step in range(size - 1):
        begins, last = node.slice(padded, 1, step, length + step), node.select(padded, 1, length + step)
        is_same = node.op("equal", begins, node.unsqueeze(last, 1))
        is_repeated = node.op("logical_and", is_repeated, is_same)
    infinity, dtype = float("inf"), node.dtype(scores)
    limits = node.op("where", is_repeated, node.full(-infinity, (), dtype), node.full(infinity, (), dtype))
    return node.op("scatter_elements", scores, node.cast(ids, "int64"), limits, axis=1, reduction="min")


@microsoft("DecoderMaskedSelfAttention")
def self_attention_of_new_token(node: Node) -> Sequence[Expr | None]:
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        node.reject("do_rotary and past_present_share_buffer are not supported")
    product = node.op("add", node.op("matmul", node.input(0), node.input(1)), node.input(2))
    heads = int(node.require_attr("num_heads"))
    q, k, v = (heads_of(node, part, heads) for part in parts_of_product(node, product))
    past = node.input(4)
    k, v = (node.op("concat", node.select(past, 0, index), x, axis=2) for index, x in enumerate((k, v)))
    how = weighing(node, node.optional(3), node.optional(5), node.shape(q)[2], node.shape(k)[2])
    return [join_heads(node, attend(node, q, k, v, how)), node.stack([k, v], 0)]


@microsoft("DecoderMaskedMultiHeadAttention")
def attention_of_new_token(node: Node) -> Sequence[Expr | None]:
    """Return the result of attention, and keys and values with those of the new token."""
    if node.has_output(3):
        node.reject("the output qk is not supported")
    heads, (query, key, value) = int(node.require_attr("num_heads")), _add_biases(node)
    q = heads_of(node, query, heads)
    if node.rank(key) == 4:  # of another text, all of it
        how = weighing(node, node.optional(3), node.optional(4), node.shape(q)[2], node.shape(key)[2])
        return [join_heads(node, attend(node, q, key, value, how)), None, None]
    k, v = heads_of(node, key, heads), heads_of(node, value, heads)
    if node.attr("past_present_share_buffer", 0):
        return _attend_in_buffer(node, q, k, v)
    past = node.optional(5), node.optional(6)
    k, v = (x if old is None else node.op("concat", old, x, axis=2) for old, x in zip(past, (k, v), strict=True))
    how = weighing(node, node.optional(3), node.optional(4), node.shape(q)[2], node.shape(k)[2])
    return [join_heads(node, attend(node, q, k, v, how)), k, v]


def _add_biases(node: Node) -> tuple[Expr, Expr, Expr]:
    """Return query, key and value, with their bias where there is one."""
    query, key, value, bias = node.input(0), node.optional(1), node.optional(2), node.optional(10)
    if key is None or value is None:
        query, key, value = parts_of_product(node, query)
    if bias is None:
        return query, key, value
    end, made = 0, list[Expr]()
    for part in (query, key, value):
        if node.rank(part) == 4:  # of another text, to which the bias has been added
            made.append(part)
            continue
        begin, end = end, end + node.require_fixed(node.shape(part)[2], "width of its heads")
        made.append(node.op("add", part, node.slice(bias, 0, begin, end)))
    return made[0], made[1], made[2]


def _attend_in_buffer(node: Node, q: Expr, k: Expr, v: Expr) -> Sequence[Expr | None]:
    """Return attention, and buffers (batch, heads, most, size) with the new key and value at past_sequence_length."""
    count = node.reshape(node.cast(node.input(7), "int64"), ())
    most = node.shape(node.input(5))[2]
    number = steps(node, most, 2, 4)
    is_new, is_there = node.op("equal", number, count), node.op("less_equal", number, count)
    buffers = [node.op("where", is_new, x, node.input(5 + index)) for index, x in enumerate((k, v))]
    k, v = (node.op("where", is_new, x, _reorder_by_beams(node, node.input(5 + i))) for i, x in enumerate((k, v)))
    mask, bias = (None if x is None else _fill_up(node, x, most) for x in (node.optional(3), node.optional(4)))
    how = replace(weighing(node, mask, bias, 1, most), visible=node.reshape(is_there, (1, 1, 1, most)))
    return [join_heads(node, attend(node, q, k, v, how)), *buffers]


def _fill_up(node: Node, x: Expr, most: Dim) -> Expr:
    """Return what is given for the keys so far, with zeros for the others in the buffer."""
    last = node.rank(x) - 1
    missing = most - node.shape(x)[last]
    return node.op("pad", x, pads=(*(0,) * (2 * last + 1), missing), mode="constant")


def _reorder_by_beams(node: Node, buffer: Expr) -> Expr:
    """Return the buffer with each row taken from the beam that cache_indirection (batch, beams, most) names."""
    origin = node.optional(9)
    if origin is None:
        return buffer
    batch, beams, most = node.shape(origin)
    _, heads, length, size = node.shape(buffer)
    apart = node.reshape(buffer, (batch, beams, heads, length, size))
    index = node.slice(node.cast(origin, "int64"), 2, 0, length) if most != length else node.cast(origin, "int64")
    index = node.broadcast_to(node.reshape(index, (batch, beams, 1, length, 1)), (batch, beams, heads, length, size))
    taken = node.op("gather_elements", apart, index, axis=1)
    return node.reshape(taken, (dims.product((batch, beams)), heads, length, size))


@microsoft("GreedySearch", "BeamSearch", "Sampling", "WhisperBeamSearch")
def search(node: Node) -> Expr:
    """Refuse the loops of text generation that onnxruntime has as one node: they change buffers of their decoders."""
    node.reject("its loop over a decoder is not supported: compile the decoder, and call it for each token")
