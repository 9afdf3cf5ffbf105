"""Quantized operators of the domain com.microsoft: real = (stored - zero point) * scale.

What onnxruntime rounds between the steps of one operator is not rounded here: results may differ by one unit of what is
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from kernelyard.dims import Dim, ceildiv, product
from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.converters.microsoft import channels_last, channels_second, embed
from kernelyard_onnx.converters.pooling import average_pool, max_pool
from kernelyard_onnx.converters.quantization import (
    dequantize,
    dequantize_linear,
    quantize,
    quantize_dynamically,
    quantize_linear,
    quantized_convolution,
)
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

microsoft = partial(converter, domain=MICROSOFT)


@microsoft("QuantizeLinear")
def microsoft_quantize_linear(node: Node) -> Expr:
    return quantize_linear(node)


@microsoft("DequantizeLinear")
def microsoft_dequantize_linear(node: Node) -> Expr:
    return dequantize_linear(node)


def _real(node: Node, first: int, axis: int | None = None) -> Expr:
    """Dequantize stored numbers by scale and zero point, three inputs in a row."""
    return dequantize(node, node.input(first), node.input(first + 1), node.optional(first + 2), axis)


def _quantize(node: Node, x: Expr, scale: int, dtype: str) -> Expr:
    """Real numbers -> stored numbers, by the scale and zero point at two inputs in a row."""
    return quantize(node, x, node.input(scale), node.optional(scale + 1), dtype)


@microsoft("QLinearAdd")
def quantized_add(node: Node) -> Expr:
    """Add in units of the result, as onnxruntime does: halves, as all of erf(x) + 1 in GELU are, are exact there."""
    operands: list[Expr] = []
    for first in (0, 3):
        scale = node.broadcast("divide", node.input(first + 1), node.input(6))
        operands.append(dequantize(node, node.input(first), scale, node.optional(first + 2)))
    one = node.full(1, (), "float32")
    return quantize(node, node.broadcast("add", *operands), one, node.optional(7), node.dtype(node.input(0)))


@microsoft("QLinearMul")
def quantized_multiply(node: Node) -> Expr:
    product = node.broadcast("multiply", _real(node, 0), _real(node, 3))
    return _quantize(node, product, 6, node.dtype(node.input(0)))


@microsoft("QLinearSigmoid")
def quantized_sigmoid(node: Node) -> Expr:
    return _quantize(node, node.op("sigmoid", _real(node, 0)), 3, node.dtype(node.input(0)))


@microsoft("QLinearLeakyRelu")
def quantized_leaky_relu(node: Node) -> Expr:
    activated = node.op("nn.leaky_relu", _real(node, 0), alpha=float(node.attr("alpha", 0.01)))
    return _quantize(node, activated, 3, node.dtype(node.input(0)))


@microsoft("QLinearGlobalAveragePool")
def quantized_global_average_pool(node: Node) -> Expr:
    x = node.input(0)
    axes = tuple(range(1, node.rank(x) - 1) if node.attr("channels_last", 0) else range(2, node.rank(x)))
    return _quantize(node, node.op("mean", _real(node, 0), axes=axes, keepdims=True), 3, node.dtype(x))


@microsoft("QLinearConcat")
def quantized_concat(node: Node) -> Expr:
    parts = [_real(node, first) for first in range(2, len(node.inputs), 3)]
    if not parts:
        node.reject("it has no inputs to concatenate")
    axis = node.axis(node.require_attr("axis"), node.rank(parts[0]))
    return _quantize(node, node.op("concat", *parts, axis=axis), 0, node.dtype(node.input(2)))


@microsoft("MatMulIntegerToFloat")
def integer_matrix_product_to_float(node: Node) -> Expr:
    a, b, a_scale, b_scale = (node.input(index) for index in range(4))
    return _integer_product(node, (a, a_scale, node.optional(4)), (b, b_scale, node.optional(5)), node.optional(6))


@microsoft("DynamicQuantizeMatMul")
def dynamically_quantized_matrix_product(node: Node) -> Expr:
    a, scale, zero = quantize_dynamically(node)
    return _integer_product(node, (a, scale, zero), (node.input(1), node.input(2), node.optional(3)), node.optional(4))


Quantized = tuple[Expr, Expr, Expr | None]


def _integer_product(node: Node, left: Quantized, right: Quantized, bias: Expr | None) -> Expr:
    """Return the product of stored numbers, the right ones with a scale of one number or one per column, plus bias."""
    x, y = dequantize(node, *left), dequantize(node, *right, axis=node.rank(right[0]) - 1)
    total = node.op("matmul", x, y)
    return total if bias is None else node.broadcast("add", total, bias)


@microsoft("QLinearWhere")
def quantized_where(node: Node) -> Expr:
    chosen = node.broadcast("where", node.input(0), _real(node, 1), _real(node, 4))
    return _quantize(node, chosen, 7, node.dtype(node.input(1)))


@microsoft("QLinearReduceMean")
def quantized_mean(node: Node) -> Expr:
    x = node.input(0)
    axes = node.axes(node.attr("axes") or tuple(range(node.rank(x))), node.rank(x))
    mean = node.op("mean", _real(node, 0), axes=axes, keepdims=bool(node.attr("keepdims", 1)))
    return _quantize(node, mean, 3, node.dtype(x))


@microsoft("QLinearSoftmax")
def quantized_softmax(node: Node) -> Expr:
    """Before opset 13 over all axes from one on. onnxruntime has a whole number of codes for a probability of 1."""
    x = _real(node, 0)
    axis, shape = node.axis(node.attr("axis", -1), node.rank(x)), node.shape(x)
    if node.require_attr("opset") < 13:
        x = node.reshape(x, (*shape[:axis], product(shape[axis:])))
    y = node.reshape(node.op("nn.softmax", x, axis=axis), shape)
    scale = node.op("reciprocal", node.op("floor", node.op("reciprocal", node.input(3))))
    return quantize(node, y, scale, node.optional(4), node.dtype(node.input(0)))


@microsoft("QLinearAveragePool")
def quantized_average_pool(node: Node) -> Expr:
    x, is_last = _real(node, 0), bool(node.attr("channels_last", 0))
    pooled = average_pool(node.like("AveragePool", [channels_second(node, x) if is_last else x]))
    return _quantize(node, channels_last(node, pooled) if is_last else pooled, 3, node.dtype(node.input(0)))


@microsoft("QLinearConv")
def quantized_convolution_of_either_layout(node: Node) -> Expr:
    if not node.attr("channels_last", 0):
        return quantized_convolution(node)
    inputs = [channels_second(node, node.input(0)), *node.inputs[1:]]
    return channels_last(node, quantized_convolution(node.like("QLinearConv", inputs)))


@microsoft("NhwcMaxPool")
def max_pool_of_channels_last(node: Node) -> Expr:
    pooled, *_ = max_pool(node.like("MaxPool", [channels_second(node, node.input(0))]))
    return channels_last(node, pooled)


@microsoft("QGemm")
def quantized_general_matrix_product(node: Node) -> Expr:
    """Real numbers, unless a scale of the result is given. The addend is in units of both scales and alpha."""
    a, b = node.input(0), node.input(3)
    a = node.permute(a, (1, 0)) if node.attr("transA", 0) else a
    b = node.permute(b, (1, 0)) if node.attr("transB", 0) else b
    x = dequantize(node, a, node.input(1), node.optional(2))
    total = node.op("matmul", x, dequantize(node, b, node.input(4), node.optional(5), 1))
    addend, alpha = node.optional(6), float(node.attr("alpha", 1.0))
    if addend is not None:
        unit = node.broadcast("multiply", node.reshape(node.input(1), ()), node.input(4))
        total = node.broadcast("add", total, dequantize(node, addend, unit, None, node.rank(addend) - 1))
    real = total if alpha == 1.0 else node.op("multiply", total, alpha)
    zero = node.optional(8)
    return real if node.optional(7) is None else _quantize(node, real, 7, "uint8" if zero is None else node.dtype(zero))


@microsoft("MatMulInteger16")
def product_of_short_integers(node: Node) -> Expr:
    return node.op("matmul", node.cast(node.input(0), "int32"), node.cast(node.input(1), "int32"))


@microsoft("QEmbedLayerNormalization")
def quantized_embeddings(node: Node) -> Sequence[Expr | None]:
    stored = [index for index in (2, 3, 4) if node.optional(index) is not None]
    tables = [*(_real_of(node, index, 6 + index, 11 + index) for index in stored), None][:3]
    norm = _real_of(node, 5, 11, 16), _real_of(node, 6, 12, 17)
    given = (node.optional(0), node.optional(1), None, node.optional(7))
    return embed(node, given, tables, norm)[:2]


def _real_of(node: Node, stored: int, scale: int, zero: int) -> Expr:
    return dequantize(node, node.input(stored), node.input(scale), node.optional(zero))


_INT8 = 4  # of MatMulNBits' accuracy_level: 1 is float32, 2 float16, 3 bfloat16


# --- blockwise quantized weights --------------------------------------------------------------------------------------
@microsoft("MatMulNBits")
def matrix_product_of_few_bits(node: Node) -> Expr:
    """Return a (.., K) times a weight that is stored by column: (N, blocks, bytes), with a scale for each block of
    rows. accuracy_level 4: a is rounded to int8 by the same blocks, so that integers may be multiplied.
    """
    a, packed, scales, zeros = node.input(0), node.input(1), node.input(2), node.optional(3)
    n, k, block = (int(node.require_attr(name)) for name in ("N", "K", "block_size"))
    bits, blocks = int(node.attr("bits", 4)), ceildiv(k, block)
    if node.attr("weight_prepacked", 0):
        node.reject("its weight is reordered (weight_prepacked)")
    stored = unpack_integers(node, node.reshape(packed, (n, blocks, ceildiv(block * bits, 8))), bits, block)
    dtype = node.dtype(scales)
    zero = _zero_points(node, zeros, bits, n, blocks, dtype)
    scale, groups = node.reshape(scales, (n, blocks, 1)), node.optional(4)
    if groups is not None:  # of each row its own, in place of that of its block
        stored = node.reshape(stored, (n, blocks * block))
        rest = blocks * block - node.shape(groups)[0]
        groups = node.concat([groups, node.full(0, (rest,), "int32")], 0)
        zero, scale = (_parameter_of_groups(node, each, groups) for each in (zero, scale))
    real = node.op("multiply", node.op("subtract", node.cast(stored, dtype), zero), scale)
    weight = node.reshape(real, (n, blocks * block))
    weight = weight if blocks * block == k else node.slice(weight, 1, 0, k)
    if groups is None and node.attr("accuracy_level", 0) == _INT8:
        a = node.op("fake_quantize", a, block=block)
    y, bias = node.op("matmul", a, node.permute(node.cast(weight, node.dtype(a)), (1, 0))), node.optional(5)
    return y if bias is None else node.broadcast("add", y, bias)


def _parameter_of_groups(node: Node, numbers: Expr, groups: Expr) -> Expr:
    """Return numbers (N, blocks, 1), or one for all, by the group of each row."""
    if node.shape(numbers) == (1, 1, 1):
        return node.reshape(numbers, (1, 1))
    return node.op("take", node.reshape(numbers, node.shape(numbers)[:2]), groups, axis=1)


# The values of bitsandbytes' two kinds of 4-bit numbers, by what is stored.
_FP4_HALF = (0.0, 0.0052083333, 0.6666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.07958029, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
_BNB4 = np.array([(*_FP4_HALF, *(-value for value in _FP4_HALF)), _NF4], np.float32)


@microsoft("MatMulBnb4")
def matrix_product_of_bitsandbytes(node: Node) -> Expr:
    """Return a (.., K) times a weight (N, K) of entries of a table, each block of which has a largest value."""
    a, packed, largest = node.require_inputs()
    n, k, block = (int(node.require_attr(name)) for name in ("N", "K", "block_size"))
    kind = int(node.require_attr("quant_type"))
    if kind not in (0, 1) or not node.attr("transB", 1):
        node.reject(f"its quant_type is {kind}, or its weight is not transposed")
    pairs = node.reshape(packed, (ceildiv(n * k, 2), 1))
    halves = [
        node.op("right_shift", pairs, np.array(4, np.uint8)),
        node.op("bitwise_and", pairs, np.array(15, np.uint8)),
    ]
    indices = node.cast(node.reshape(node.concat(halves, 1), (2 * ceildiv(n * k, 2),)), "int64")
    scales = node.op("take", largest, np.arange(n * k) // block, axis=0)
    values = node.op("take", node.cast(Constant(_BNB4[kind]), node.dtype(largest)), indices, axis=0)
    weight = node.op("multiply", node.slice(values, 0, 0, n * k), scales)
    weight = node.reshape(node.cast(weight, node.dtype(a)), (n, k))
    return node.op("matmul", a, node.permute(weight, (1, 0)))


def _zero_points(node: Node, zeros: Expr | None, bits: int, n: Dim, blocks: Dim, dtype: str) -> Expr:
    if zeros is None:
        return node.full(2 ** (bits - 1), (1, 1, 1), dtype)
    if node.dtype(zeros) == "uint8":
        width = ceildiv(blocks * bits, 8)
        zeros = unpack_integers(node, node.reshape(zeros, (n, width)), bits, blocks)
    return node.reshape(node.cast(zeros, dtype), (n, blocks, 1))


def unpack_integers(node: Node, packed: Expr, bits: int, count: Dim) -> Expr:
    """Return the integers of `bits` that are packed in bytes along the last axis, the lowest bits first."""
    if bits == 8:
        return packed
    if bits not in (2, 4):
        node.reject(f"its weights have {bits} bits; 2, 4 and 8 are supported")
    *outer, width = node.shape(packed)
    shifts = np.arange(0, 8, bits).astype(np.uint8)
    parts = node.op("right_shift", node.reshape(packed, (*outer, width, 1)), shifts)
    parts = node.op("bitwise_and", parts, np.array(2**bits - 1, np.uint8))
    last, every = len(outer), width * len(shifts)
    flat = node.reshape(parts, (*outer, every))
    return flat if every == count else node.slice(flat, last, 0, count)


@microsoft("GatherBlockQuantized")
def rows_of_few_bits(node: Node) -> Expr:
    """Gather quantized slices along one axis; another, the last where bytes hold several numbers, has a scale for each
    block.
    """
    data, indices, scales, zeros = node.input(0), node.input(1), node.input(2), node.optional(3)
    bits, block, rank = int(node.attr("bits", 4)), int(node.attr("block_size", 128)), node.rank(data)
    axis, along = (node.axis(node.attr(n, d), rank) for n, d in (("gather_axis", 0), ("quantize_axis", 1)))
    is_packed = node.dtype(data) == "uint8" and data not in node.importer.element_types and bits < 8
    if not along > axis or (is_packed and along != rank - 1) or not block:
        node.reject("its quantize_axis must come after its gather_axis, and be the last of packed weights")
    at = along + node.rank(indices) - 1  # the axis of blocks, where several axes may have taken the place of one

    def pick(table: Expr) -> Expr:
        return node.op("take", table, indices, axis=axis)

    scale, stored = pick(scales), pick(node.wide(data))
    size = node.shape(data)[along] * (8 // bits if is_packed else 1)
    middle = 2 ** (bits - 1) if node.dtype(data) == "uint8" and data not in node.importer.element_types else 0
    zero = node.full(middle, (), "int32")
    if zeros is not None:
        zero = pick(node.wide(zeros))
        zero = unpack_integers(node, zero, bits, node.shape(scale)[at]) if is_packed else zero
        zero = repeat_in_blocks(node, node.cast(zero, "int32"), at, block, size)
    stored = unpack_integers(node, stored, bits, size) if is_packed else stored
    whole = node.op("subtract", node.cast(stored, "int32"), zero)
    return node.op("multiply", node.cast(whole, node.dtype(scale)), repeat_in_blocks(node, scale, at, block, size))


def repeat_in_blocks(node: Node, x: Expr, axis: int, block: int, size: Dim) -> Expr:
    """Repeat each number along an axis as often as a block is long, cut to a size."""
    shape = node.shape(x)
    outer, count, inner = shape[:axis], shape[axis], shape[axis + 1 :]
    wide = node.broadcast_to(node.reshape(x, (*outer, count, 1, *inner)), (*outer, count, block, *inner))
    flat = node.reshape(wide, (*outer, count * block, *inner))
    return flat if count * block == size else node.slice(flat, axis, 0, size)
