"""Operators of the domain com.microsoft that onnxruntime's optimizers and quantizers write into models.

Definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from kernelyard.dims import floordiv, product
from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Constant, Elimination, Expr
from kernelyard_onnx.converters.constant import number_range
from kernelyard_onnx.converters.convolution import convolve, transposed_convolution
from kernelyard_onnx.converters.indexing import gather_nd, triangle, unique
from kernelyard_onnx.converters.linear import general_matrix_product
from kernelyard_onnx.converters.slicing import pad_node
from kernelyard_onnx.converters.spatial import grid_sample
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

microsoft = partial(converter, domain=MICROSOFT)


# --- activations ------------------------------------------------------------------------------------------------------
@microsoft("Gelu")
def gelu(node: Node) -> Expr:
    return node.op("nn.gelu", node.input(0))


@microsoft("BiasGelu")
def bias_gelu(node: Node) -> Expr:
    return node.op("nn.gelu", node.broadcast("add", node.input(0), node.input(1)))


@microsoft("FastGelu")
def fast_gelu(node: Node) -> Expr:
    x, bias = node.input(0), node.optional(1)
    return node.op("nn.gelu_tanh", x if bias is None else node.broadcast("add", x, bias))


@microsoft("QuickGelu")
def quick_gelu(node: Node) -> Expr:
    x = node.input(0)
    return node.op("multiply", x, node.op("sigmoid", node.op("multiply", x, float(node.attr("alpha", 1.702)))))


@microsoft("ScaledSiLU")
def scaled_silu(node: Node) -> Expr:
    x, scale = node.input(0), node.optional(1)
    factor = float(node.attr("alpha", 1.0)) if scale is None else node.cast(node.reshape(scale, ()), node.dtype(x))
    return node.op("nn.silu", node.op("multiply", x, factor))


@microsoft("BiasAdd")
def add_bias_and_residual(node: Node) -> Expr:
    return node.broadcast("add", node.broadcast("add", node.input(0), node.input(1)), node.input(2))


@microsoft("BiasSplitGelu")
def gated_gelu(node: Node) -> Expr:
    x = node.broadcast("add", node.input(0), node.input(1))
    last = node.rank(x) - 1
    half = node.require_fixed(node.shape(x)[last], "number of its channels") // 2
    left, right = node.slice(x, last, 0, half), node.slice(x, last, half, 2 * half)
    return node.op("multiply", left, node.op("nn.gelu", right))


@microsoft("BiasSoftmax")
def softmax_with_bias(node: Node) -> Expr:
    """Over all axes from one on. The bias has those, and of the others as many as it is not repeated along."""
    x, bias = node.input(0), node.input(1)
    axis = node.axis(node.attr("axis", 1), node.rank(x))
    if node.rank(bias) != node.rank(x) and node.require_attr("is_inner_broadcast"):
        kept = node.rank(bias) - (node.rank(x) - axis)
        shape = (*node.shape(bias)[:kept], *(1,) * (axis - kept), *node.shape(bias)[kept:])
        bias = node.reshape(bias, shape)
    total = node.broadcast("add", x, bias)
    flat = node.reshape(total, (*node.shape(total)[:axis], product(node.shape(total)[axis:])))
    return node.reshape(node.op("nn.softmax", flat, axis=axis), node.shape(total))


# --- what the standard has too ----------------------------------------------------------------------------------------
microsoft("Trilu")(triangle)
microsoft("GatherND")(gather_nd)
microsoft("GridSample")(grid_sample)


@microsoft("Range")
def numbers_in_range(node: Node) -> Expr:
    bounds = [node.reshape(node.input(index), ()) for index in (0, 1)]
    step = node.optional(2)
    one = node.full(1, (), node.dtype(bounds[0]))
    return number_range(node.like("Range", [*bounds, one if step is None else node.reshape(step, ())]))


@microsoft("Pad")
def pad(node: Node) -> Expr:
    pads = node.reshape(node.input(1), (product(node.shape(node.input(1))),))
    return pad_node(node.like("Pad", [node.input(0), pads, node.value(2)]))


@microsoft("Unique")
def unique_numbers(node: Node) -> Sequence[Expr]:
    """Return the distinct numbers in order of first occurrence, each input element's index among them, and counts."""
    values, _, inverse, counts = unique(node.like("Unique", [node.input(0)], sorted=0))
    return [values, inverse, counts]


@microsoft("ExpandDims")
def new_axis(node: Node) -> Expr:
    x = node.input(0)
    axis = node.axis(int(node.scalar(node.input(1), "axis")), node.rank(x) + 1)
    return node.unsqueeze(x, axis)


@microsoft("ConvTransposeWithDynamicPads")
def transposed_convolution_with_pads(node: Node) -> Expr:
    pads = node.optional(2)
    given = {} if pads is None else {"pads": node.ints(pads, "pads")}
    return transposed_convolution(node.like("ConvTranspose", [node.input(0), node.input(1), node.value(3)], **given))


@microsoft("UnfoldTensor")
def windows_of(node: Node) -> Expr:
    """Return a last axis with the elements of each window along an axis."""
    x, size, step = node.input(0), node.require_attr("size"), node.attr("step", 1)
    axis = node.axis(node.attr("dim", -1), node.rank(x))
    count = floordiv(node.shape(x)[axis] - size, step) + 1
    first = node.op("arange", start=0, step=step, count=count, dtype="int64")
    places = node.op("add", node.reshape(first, (count, 1)), np.arange(size).reshape(1, size))
    taken = node.op("take", x, places, axis=axis)
    order = [*range(axis + 1), *range(axis + 2, node.rank(taken)), axis + 1]
    return node.permute(taken, order)


# --- products ---------------------------------------------------------------------------------------------------------
@microsoft("FusedMatMul")
@microsoft("TransposeMatMul")
def fused_matrix_product(node: Node) -> Expr:
    a, b = (_transpose(node, node.input(index), side) for index, side in enumerate("AB"))
    product, alpha = node.op("matmul", a, b), float(node.attr("alpha", 1.0))
    return product if alpha == 1 else node.op("multiply", product, alpha)


def _transpose(node: Node, x: Expr, side: str) -> Expr:
    """Undo transBatch, after which the first axis is the one before the last; then trans swaps the last two."""
    axes = list(range(node.rank(x)))
    if node.attr(f"transBatch{side}", 0):
        axes = [*axes[1:-1], 0, axes[-1]]
    if node.attr(f"trans{side}", 0) and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    return node.permute(x, axes)


@microsoft("FusedMatMulActivation")
def fused_matrix_product_and_activation(node: Node) -> Expr:
    return _activate(node, fused_matrix_product(node))


@microsoft("FusedGemm")
def fused_general_matrix_product(node: Node) -> Expr:
    return _activate(node, general_matrix_product(node))


@microsoft("GemmFastGelu")
def matrix_product_and_gelu(node: Node) -> Expr:
    product, bias = node.op("matmul", node.input(0), node.input(1)), node.optional(2)
    return node.op("nn.gelu_tanh", product if bias is None else node.broadcast("add", product, bias))


def _activate(node: Node, x: Expr) -> Expr:
    """By the activation that the attributes name; those that they do not set have the standard's defaults."""
    numbers = [node.attr(f"activation_{name}") for name in ("alpha", "beta")]
    return _activation(node, x, [number for number in numbers if number is not None])


def _activation(node: Node, x: Expr, numbers: Sequence[float]) -> Expr:
    name = node.attr("activation", "")
    known = _FUSED.get(name) or node.reject(f"its activation {name!r} is unknown")
    op, names = known
    return node.op(op, x, **dict(zip(names, map(float, numbers), strict=False))) if op else x


# The operator, and which of its attributes the numbers of a fused activation are.
_FUSED: dict[str, tuple[str, Sequence[str]]] = {
    "": ("", ()),
    "Relu": ("nn.relu", ()),
    "Tanh": ("tanh", ()),
    "Sigmoid": ("sigmoid", ()),
    "Softplus": ("nn.softplus", ()),
    "Softsign": ("nn.softsign", ()),
    "Elu": ("nn.elu", ("alpha",)),
    "LeakyRelu": ("nn.leaky_relu", ("alpha",)),
    "Clip": ("clip", ("min", "max")),
    "HardSigmoid": ("nn.hard_sigmoid", ("alpha", "beta")),
}


@microsoft("FusedConv")
def fused_convolution(node: Node) -> Expr:
    result, residual = convolve(node, node.input(0), node.input(1), node.optional(2)), node.optional(3)
    if residual is not None:
        result = node.op("add", result, residual)
    return _activation(node, result, node.attr("activation_params") or ())


@microsoft("NhwcConv")
def convolution_of_channels_last(node: Node) -> Expr:
    x, weight = channels_second(node, node.input(0)), channels_second(node, node.input(1))
    return channels_last(node, convolve(node, x, weight, node.optional(2)))


@microsoft("NhwcFusedConv")
def fused_convolution_of_channels_last(node: Node) -> Expr:
    x, weight, residual = (node.optional(index) for index in (0, 1, 3))
    inputs = [node.input(0) if x is None else channels_second(node, x), weight, node.optional(2)]
    residual = None if residual is None else channels_second(node, residual)
    return channels_last(node, fused_convolution(node.like("FusedConv", [*inputs, residual])))


def channels_second(node: Node, x: Expr) -> Expr:
    """Return the last axis put behind the first."""
    rank = node.rank(x)
    return node.permute(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(node: Node, x: Expr) -> Expr:
    """Return the second axis put last."""
    return node.permute(x, (0, *range(2, node.rank(x)), 1))


@microsoft("CDist")
def distances(node: Node) -> Expr:
    """Between each row of one matrix and each of the other."""
    a, b, metric = node.input(0), node.input(1), node.attr("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        node.reject(f"its metric {metric!r} is not supported")
    lengths = [node.op("sum", node.op("square", x), axes=(1,), keepdims=True) for x in (a, b)]
    total = node.op("add", lengths[0], node.permute(lengths[1], (1, 0)))
    products = node.op("matmul", a, node.permute(b, (1, 0)))
    squares = node.op("clip", node.op("subtract", total, node.op("multiply", products, 2)), min=0.0)
    return node.op("sqrt", squares) if metric == "euclidean" else squares


@microsoft("Inverse")
def inverse(node: Node) -> Expr:
    x, dtype = node.input(0), node.dtype(node.input(0))
    x = node.cast(x, "float32") if dtype == "float16" else x
    unit = np.eye(node.require_fixed(node.shape(x)[-1], "size of its matrices"), dtype=to_numpy(node.dtype(x)))
    return node.cast(Elimination.of(node, x, node.broadcast_to(Constant(unit), node.shape(x))).beside, dtype)


# --- normalization ----------------------------------------------------------------------------------------------------
@microsoft("SkipLayerNormalization")
def skip_layer_normalization(node: Node) -> Sequence[Expr | None]:
    """Return the result, mean and inverse deviation (both only for training), and the sum that was normalized."""
    x, gamma, beta = _skip_sum(node, 4), node.input(2), node.optional(3)
    shift = node.full(0, node.shape(gamma), node.dtype(gamma)) if beta is None else beta
    axes, epsilon = (node.rank(x) - 1,), float(node.attr("epsilon", 1e-12))
    return [node.op("nn.layer_norm", x, gamma, shift, axes=axes, epsilon=epsilon), None, None, x]


@microsoft("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(node: Node) -> Sequence[Expr | None]:
    x = _skip_sum(node, 3)
    axes, epsilon = (node.rank(x) - 1,), float(node.attr("epsilon", 1e-12))
    return [node.op("nn.rms_norm", x, node.input(2), axes=axes, epsilon=epsilon), None, None, x]


def _skip_sum(node: Node, bias_index: int) -> Expr:
    total, bias = node.broadcast("add", node.input(0), node.input(1)), node.optional(bias_index)
    return total if bias is None else node.broadcast("add", total, bias)


@converter("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: Node) -> Expr:
    """Convert the RMS norm that Microsoft's exporters put into the standard's domain, although it does not have it."""
    x = node.input(0)
    axes = tuple(range(node.axis(node.attr("axis", -1), node.rank(x)), node.rank(x)))
    return node.op("nn.rms_norm", x, node.input(1), axes=axes, epsilon=float(node.attr("epsilon", 1e-5)))


@microsoft("GatedRMSNorm")
def gated_norm(node: Node) -> Expr:
    """Normalize groups of as many channels as there are factors, and multiply by an activation of the gate."""
    x, scale, gate = node.require_inputs()
    name = {"silu": "nn.silu", "swish": "nn.silu", "sigmoid": "sigmoid"}.get(node.attr("activation", "silu"))
    *outer, width = node.shape(x)
    size = product(node.shape(scale))
    grouped = node.reshape(x, (*outer, floordiv(width, size), size))
    axes, epsilon = (node.rank(grouped) - 1,), float(node.attr("epsilon", 1e-5))
    y = node.reshape(node.op("nn.rms_norm", grouped, scale, axes=axes, epsilon=epsilon), node.shape(x))
    return node.op("multiply", y, node.op(name or node.reject("its activation is unknown"), gate))


@microsoft("GroupNorm")
def group_normalization(node: Node) -> Expr:
    return _group_norm(node, node.input(0))


@microsoft("SkipGroupNorm")
def skip_group_normalization(node: Node) -> Sequence[Expr]:
    x, skip, bias = node.input(0), node.input(3), node.optional(4)
    if node.rank(skip) == 2:
        batch, channels = node.shape(skip)
        skip = node.reshape(skip, (batch, 1, 1, channels) if node.attr("channels_last", 1) else (batch, channels, 1, 1))
    total = node.broadcast("add", x, skip)
    if bias is not None:
        axis = node.rank(x) - 1 if node.attr("channels_last", 1) else 1
        total = node.op("add", total, node.along(bias, axis, node.rank(x)))
    return [_group_norm(node, total), total]


def _group_norm(node: Node, x: Expr) -> Expr:
    is_last, dtype = bool(node.attr("channels_last", 1)), node.dtype(x)
    y = node.cast(channels_second(node, x) if is_last else x, "float32")
    factors = [node.cast(node.input(index), "float32") for index in (1, 2)]
    groups, epsilon = int(node.require_attr("groups")), float(node.attr("epsilon", 1e-5))
    y = node.op("nn.group_norm", y, *factors, num_groups=groups, epsilon=epsilon)
    y = node.cast(node.op("nn.silu", y) if node.require_attr("activation") else y, dtype)
    return channels_last(node, y) if is_last else y


@microsoft("EmbedLayerNormalization")
def embeddings(node: Node) -> Sequence[Expr | None]:
    """Return the normalized sum of embeddings, the number of words of each sequence, and the sum."""
    words, segments, positions, mask = (node.optional(index) for index in (0, 1, 8, 7))
    tables = [node.optional(index) for index in (2, 3, 4)]
    return embed(node, (words, segments, positions, mask), tables, (node.input(5), node.input(6)))


def embed(
    node: Node, given: Sequence[Expr | None], tables: Sequence[Expr | None], norm: tuple[Expr, Expr]
) -> Sequence[Expr | None]:
    """given: words, segments, positions, a mask. tables: of words, positions, segments. norm: factors and shifts."""
    words, segments, positions, mask = given
    if words is None or tables[0] is None or tables[1] is None:
        node.reject("its input_ids or an embedding table is missing")
    batch, length = node.shape(words)
    if positions is None:
        positions = node.op("arange", start=0, step=1, count=length, dtype="int64")
    total = node.broadcast("add", _rows(node, tables[0], words), _rows(node, tables[1], positions))
    if segments is not None and tables[2] is not None:
        total = node.op("add", total, _rows(node, tables[2], segments))
    y = node.op("nn.layer_norm", total, *norm, axes=(2,), epsilon=float(node.attr("epsilon", 1e-12)))
    count = node.full(0, (batch,), "int32")
    if mask is not None:
        is_word = node.cast(node.op("equal", mask, 1), "int32")
        count = node.op("sum", is_word, axes=(1,), keepdims=False)
    return [y, count, total]


def _rows(node: Node, table: Expr, numbers: Expr) -> Expr:
    return node.op("take", table, numbers, axis=0)
