"""Attention as onnxruntime's optimizers and model builders write it (domain com.microsoft).

Inside, queries, keys and values are (batch, heads, sequence, size). Where a mask hides keys by a large negative number,
so does this: what a row sees whose keys are all hidden is decided by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.microsoft_heads import heads_of, join_heads, steps
from kernelyard_onnx.converters.microsoft_rotary import rotate
from kernelyard_onnx.converters.quantization import dequantize
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

HIDDEN = float(np.finfo(np.float32).min)  # what makes a key invisible without making NaN of a row of such keys


# --- parts ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Weighing:
    """The softmax of attention. biases: added to the scores. visible: the mask of keys that may be attended to. sink:
    an extra logit per head that belongs to no key."""

    scale: float | None = None
    softcap: float = 0.0
    biases: tuple[Expr, ...] = ()
    visible: Expr | None = None
    sink: Expr | None = None


def attend(node: Node, q: Expr, k: Expr, v: Expr, how: Weighing) -> Expr:
    """Return the weighted mean of values, per head.

    Fewer heads of keys and values are shared by neighbouring queries.
    """
    size = node.require_fixed(node.shape(q)[3], "size of its heads")
    k, v = (node.repeat_heads(x, node.shape(q)[1]) for x in (k, v))
    scores = node.op("matmul", q, node.permute(k, (0, 1, 3, 2)))
    scores = node.op("multiply", scores, how.scale or 1 / math.sqrt(size))
    if how.softcap:
        scores = node.op("multiply", node.op("tanh", node.op("multiply", scores, 1 / how.softcap)), how.softcap)
    for bias in how.biases:
        scores = node.broadcast("add", scores, node.cast(bias, node.dtype(scores)))
    if how.visible is not None:
        least = np.finfo(np.float16).min if node.dtype(scores) == "float16" else HIDDEN
        scores = node.broadcast("where", how.visible, scores, node.full(float(least), (), node.dtype(scores)))
    return node.op("matmul", _weights(node, scores, how.sink), v)


def _weights(node: Node, scores: Expr, sink: Expr | None) -> Expr:
    if sink is None:
        return node.op("nn.softmax", scores, axis=3)
    *outer, keys = node.shape(scores)
    sink = node.reshape(node.cast(sink, node.dtype(scores)), (1, outer[1], 1, 1))
    column = node.broadcast_to(sink, (*outer, 1))
    return node.slice(node.op("nn.softmax", node.op("concat", scores, column, axis=3), axis=3), 3, 0, keys)


def _causal(node: Node, rows: Dim, keys: Dim) -> Expr:
    """Return the last row sees all keys, the one before all but the last."""
    last = node.op("add", steps(node, rows, 0, 2), node.expr(keys - rows, "int64"))
    return node.op("less_equal", steps(node, keys, 1, 2), last)


def _bias_of_mask(node: Node, mask: Expr, rows: Dim, keys: Dim) -> Expr:
    """Return the bias of a mask on the scores. The mask is of keys (batch, keys), of rows and keys (batch, rows, keys)
    for all heads, of whole sequences (batch, 1, most, most), or sequence lengths (batch,), or ends and begins
    (2 * batch,)."""
    shape, dtype = node.shape(mask), "float32"
    if len(shape) == 1:
        shown = _mask_outside(node, node.cast(mask, "int64"), keys)
    elif len(shape) == 4:
        mask = node.slice(mask, 2, keys - rows, keys)
        shown = node.op("not_equal", node.slice(mask, 3, 0, keys), 0)
    else:
        wide = (shape[0], 1, *((1, shape[1]) if len(shape) == 2 else shape[1:]))
        shown = node.op("not_equal", node.reshape(mask, wide), 0)
    hidden = node.full(float(node.attr("mask_filter_value", -10000.0)), (), dtype)
    return node.op("where", shown, node.full(0, (), dtype), hidden)


def _mask_outside(node: Node, ends: Expr, keys: Dim) -> Expr:
    """Mask the keys beyond the end of their sequence, and those before its begin if that is given too."""
    batch = node.shape(node.input(0))[0]
    count = node.shape(ends)[0]
    number = steps(node, keys, 3, 4)
    if count == batch:
        return node.op("less", number, node.reshape(ends, (batch, 1, 1, 1)))
    if count != 2 * batch:
        node.reject("its mask is neither a key padding mask, nor an attention mask, nor sequence lengths")
    end, begin = (node.reshape(node.slice(ends, 0, i * batch, (i + 1) * batch), (batch, 1, 1, 1)) for i in (0, 1))
    inside = node.op("less", number, end)
    return node.op("logical_and", inside, node.op("greater_equal", number, begin))


def scale_of(node: Node) -> float | None:
    """Return the scale that a model gives, or None."""
    return float(node.attr("scale", 0.0)) or None


def weighing(node: Node, mask: Expr | None, bias: Expr | None, rows: Dim, keys: Dim) -> Weighing:
    """Return the softmax of a mask and a bias that may be left out, and of the attributes."""
    added = () if mask is None else (_bias_of_mask(node, mask, rows, keys),)
    visible = _causal(node, rows, keys) if node.attr("unidirectional", 0) else None
    return Weighing(scale_of(node), biases=(*added, *(() if bias is None else (bias,))), visible=visible)


# --- operators --------------------------------------------------------------------------------------------------------
@converter("Attention", domain=MICROSOFT)
def attention(node: Node) -> Sequence[Expr | None]:
    """Compute queries, keys and values by one product, and attention; return the result, and the cache of keys and
    values.
    """
    x, weights, bias = node.input(0), node.input(1), node.optional(2)
    product = node.op("matmul", x, weights)
    product = product if bias is None else node.op("add", product, bias)
    return _attention(node, product, node.optional(3), node.optional(4), node.optional(5))


def _attention(
    node: Node, product: Expr, mask: Expr | None, past: Expr | None, bias: Expr | None
) -> Sequence[Expr | None]:
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        node.reject("do_rotary and past_present_share_buffer are not supported")
    parts = parts_of_product(node, product)
    q, k, v = (heads_of(node, part, node.require_attr("num_heads")) for part in parts)
    if past is not None:
        k, v = (_after(node, node.select(past, 0, index), x) for index, x in enumerate((k, v)))
    how = weighing(node, mask, bias, node.shape(q)[2], node.shape(k)[2])
    y = join_heads(node, attend(node, q, k, v, how))
    if not node.has_output(1):
        return [y]
    return [y, node.stack([k, v], 0)]


def parts_of_product(node: Node, product: Expr) -> list[Expr]:
    """Return queries, keys and values of the product (batch, sequence, columns) that makes all of them."""
    whole = node.require_fixed(node.shape(product)[2], "number of columns of its weights")
    widths = tuple(node.attr("qkv_hidden_sizes") or (whole // 3,) * 3)
    if len(widths) != 3 or sum(widths) != whole:
        node.reject(f"its qkv_hidden_sizes {widths} are not those of its weights")
    ends = (widths[0], widths[0] + widths[1], whole)
    return [node.slice(product, 2, end - width, end) for end, width in zip(ends, widths, strict=True)]


def _after(node: Node, past: Expr | None, x: Expr) -> Expr:
    return x if past is None else node.op("concat", past, x, axis=2)


@converter("QAttention", domain=MICROSOFT)
def quantized_attention(node: Node) -> Sequence[Expr | None]:
    x = dequantize(node, node.input(0), node.input(3), node.optional(6))
    product = node.op("matmul", x, dequantize(node, node.input(1), node.input(4), node.optional(7), 1))
    return _attention(node, node.op("add", product, node.input(2)), node.optional(5), node.optional(8), None)


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: Node) -> Sequence[Expr | None]:
    """Return the result of attention, and the cache of keys and values."""
    if node.optional(8) is not None or node.optional(9) is not None or node.has_output(3):
        node.reject("past_sequence_length, cache_indirection and the output qk are not supported")
    q, k, v = _split_heads(node)
    k, v = _after(node, node.optional(6), k), _after(node, node.optional(7), v)
    how = weighing(node, node.optional(4), node.optional(5), node.shape(q)[2], node.shape(k)[2])
    return [join_heads(node, attend(node, q, k, v, how)), k, v]


def _split_heads(node: Node) -> tuple[Expr, Expr, Expr]:
    """Return queries, keys and values, given apart, keys and values packed, all packed, or from the cache."""
    query, key, value, bias = node.input(0), node.optional(1), node.optional(2), node.optional(3)
    count = node.require_attr("num_heads")
    if node.rank(query) == 5:
        given = [_unpack(node, query, index) for index in range(3)]
    elif key is not None and node.rank(key) == 5:
        given = [heads_of(node, query, count), *(_unpack(node, key, index) for index in range(2))]
    elif key is not None and value is not None:
        given = [x if node.rank(x) == 4 else heads_of(node, x, count) for x in (query, key, value)]
    else:
        node.reject("its keys or values are missing")
    if bias is None:
        return given[0], given[1], given[2]
    ready = [False, *(x is not None and node.rank(x) == 4 for x in (key, value))]
    end, results = 0, []
    for x, has_bias in zip(given, ready, strict=True):
        width = node.require_fixed(node.shape(x)[1] * node.shape(x)[3], "width of its heads")
        part, end = node.slice(bias, 0, end, end + width), end + width
        shift = node.reshape(part, (1, node.shape(x)[1], 1, node.shape(x)[3]))
        results.append(x if has_bias else node.op("add", x, shift))
    return results[0], results[1], results[2]


def _unpack(node: Node, x: Expr, index: int) -> Expr:
    batch, length, count, _, size = node.shape(x)
    part = node.reshape(node.slice(x, 3, index, index + 1), (batch, length, count, size))
    return node.permute(part, (0, 2, 1, 3))


# --- grouped queries --------------------------------------------------------------------------------------------------
@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: Node) -> Sequence[Expr | None]:
    """Attention of a text that is written on: keys and values go to a state, behind those that each sequence has.

    Outputs: the result, and the states, as long as the text so far or as the state given, whichever is longer.
    """
    if node.attr("k_quant_type", "NONE") != "NONE" or node.attr("v_quant_type", "NONE") != "NONE":
        node.reject("a quantized KV cache is not supported")
    if node.attr("qk_output", 0) or node.attr("sliding_window_cache", 0) or not node.attr("causal", 1):
        node.reject("qk_output, sliding_window_cache and causal = 0 are not supported")
    q, k, v = _repeat_heads(node)
    batch, _, rows, _ = node.shape(q)
    count = node.reshape(node.cast(node.input(5), "int64"), (batch, 1))  # of keys, less one
    total = node.reshape(node.cast(node.input(6), "int64"), (1, 1))
    behind = node.op("subtract", node.op("add", count, 1), node.expr(rows, "int64"))
    is_first = node.op("equal", total, node.expr(rows, "int64"))  # then the rows behind a sequence's end are there too
    past = node.op("where", is_first, node.full(0, (), "int64"), behind)
    if node.attr("do_rotary", 0):
        given = node.optional(9)
        at = node.op("add", steps(node, rows, 1, 2), past) if given is None else node.cast(given, "int64")
        at, tables = node.broadcast_to(at, (batch, rows)), (node.input(7), node.input(8))
        width = 2 * node.require_fixed(node.shape(tables[0])[1], "size of its cache")
        turn = bool(node.attr("rotary_interleaved", 0))
        q, k = (rotate(node, x, at, tables, width, turn) for x in (q, k))
    (length,) = node.dims(node.input(6), "total_sequence_length")
    k, v = (_write_rows(node, node.optional(3 + i), x, past, length) for i, x in enumerate((k, v)))
    number, own = steps(node, node.shape(k)[2], 3, 4), node.reshape(past, (batch, 1, 1, 1))
    own = node.op("add", own, steps(node, rows, 2, 4))
    last = node.op("minimum", own, node.reshape(count, (batch, 1, 1, 1)))
    visible = node.op("less_equal", number, last)
    window = node.attr("local_window_size", -1)
    if window > 0:
        visible = node.op("logical_and", visible, node.op("greater", number, node.op("subtract", own, window)))
    how = Weighing(scale_of(node), float(node.attr("softcap", 0.0)), _pad_bias(node, k), visible, _sink(node))
    return [join_heads(node, attend(node, q, k, v, how)), k, v]


def _repeat_heads(node: Node) -> tuple[Expr, Expr, Expr]:
    query, key, value = node.input(0), node.optional(1), node.optional(2)
    many, few = node.require_attr("num_heads"), node.require_attr("kv_num_heads")
    if key is not None and value is not None:
        q, k, v = heads_of(node, query, many), heads_of(node, key, few), heads_of(node, value, few)
    else:
        whole = heads_of(node, query, many + 2 * few)
        q, k, v = (node.slice(whole, 1, a, b) for a, b in ((0, many), (many, many + few), (many + few, many + 2 * few)))
    epsilon = float(node.attr("qk_norm_epsilon", 1e-6))
    if node.optional(14) is not None:
        q = node.op("nn.rms_norm", q, node.input(14), axes=(3,), epsilon=epsilon)
        k = node.op("nn.rms_norm", k, node.input(15), axes=(3,), epsilon=epsilon)
    return q, k, v


def _pad_bias(node: Node, k: Expr) -> tuple[Expr, ...]:
    bias = node.optional(10)
    if bias is None:
        return ()
    missing = node.shape(k)[2] - node.shape(bias)[3]
    return (bias if missing == 0 else node.op("pad", bias, pads=(0, 0, 0, 0, 0, 0, 0, missing), mode="constant"),)


def _sink(node: Node) -> Expr | None:
    sink = node.optional(11)
    if sink is None and node.attr("smooth_softmax", -1) == 1:
        return node.full(0, (node.require_attr("num_heads"),), "float32")
    return sink


def _write_rows(node: Node, state: Expr | None, x: Expr, past: Expr, total: Dim) -> Expr:
    """Return the state with new rows written behind the first `past` of each sequence, and nothing behind these."""
    batch, _, rows, _ = node.shape(x)
    if state is None:
        return x
    known = node.shape(state)[2]
    length = dims.maximum(total, known)
    both = node.permute(node.op("concat", state, x, axis=2), (0, 2, 1, 3))  # (batch, known + rows, heads, size)
    number = steps(node, length, 1, 2)
    new = node.op("add", node.op("subtract", number, past), node.expr(known, "int64"))
    from_ = node.op("where", node.op("less", number, past), number, new)
    from_ = node.op("minimum", from_, node.expr(known + rows - 1, "int64"))
    picked = node.op("gather_nd", both, node.reshape(from_, (batch, length, 1)), batch_dims=1)
    is_there = node.op("less", number, node.op("add", past, node.expr(rows, "int64")))
    is_there = node.reshape(is_there, (batch, 1, length, 1))
    return node.op("where", is_there, node.permute(picked, (0, 2, 1, 3)), node.full(0, (), node.dtype(x)))
