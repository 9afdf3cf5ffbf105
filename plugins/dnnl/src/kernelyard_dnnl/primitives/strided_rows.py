"""conv over sequences as matrix products: what a window reads of channels-last data is one run of memory, and windows
a stride apart are the rows of a matrix.

A window of k steps that moves by s is ceil(k / s) such matrices, whose rows do not overlap; their products are summed
in place. oneDNN's convolutions read all weights for each few pixels of a row, its products for a block of rows that
fits the caches: where the weights do not, products take 0.7 of the time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, any_layout, channels_last, dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import PostOps
from kernelyard_dnnl.primitives.post_ops import Step, execute
from kernelyard_dnnl.values import Node, Value

WEIGHTS, BIAS = enums.ARG["weights"], enums.ARG["bias"]
# Weights below so many bytes stay in a core's own caches, beside what they meet.
LARGE_WEIGHTS = 1 << 21
MANY_WINDOWS = 64  # windows that weights must meet for their products to be bound by arithmetic
# With AVX2, a product packs its matrix in each call: 200 to 530 windows took 1.34 to 1.40 times as long as a
# convolution, 600 to 4,000 of 20 shapes 0.80 to 1.18 times, 0.94 in the geometric mean.
MANY_WINDOWS_WITH_AVX2 = 600


def is_better_as_products(node: Node) -> bool:
    """Return True for overlapping windows a stride apart on a sequence without padding, with large constant weights."""
    weight, attrs = node.operands["weight"], node.attrs
    if len(node.shape) != 3 or attrs["groups"] != 1 or attrs["dilation"][0] != 1 or not weight.is_constant:
        return False
    dtypes = {node.dtype, *(value.descriptor.dtype for value in node.operands.values())}
    padding = (*node.sizes("padding_begin"), *node.sizes("padding_end"))
    return (
        dtypes == {"float32"}
        and not any(padding)
        and 1 < _stride(node) < weight.shape[2]
        and 4 * math.prod(weight.shape) >= LARGE_WEIGHTS
        and node.shape[2] >= _many_windows()
    )


def _many_windows() -> int:
    from kernelyard_dnnl.processor import has_wide_vectors  # inside: few sequences get here

    return MANY_WINDOWS if has_wide_vectors() else MANY_WINDOWS_WITH_AVX2


def lower_as_products(node: Node, graph: Lowering) -> Value:
    """Lower a conv node that `is_better_as_products`."""
    data, taps = graph.make_channels_last(node.operands["data"]), node.operands["weight"].shape[2]
    stride = _stride(node)
    bare = replace(node, attrs={**node.attrs, "post_ops": ()})
    result = _product(node if stride >= taps else bare, graph, data, 0, None)
    for first in range(stride, taps, stride):
        result = _product(node if first + stride >= taps else bare, graph, data, first, result)
    return result


def _stride(node: Node) -> int:
    return int(node.attrs["strides"][0])


def _product(node: Node, graph: Lowering, data: Value, first: int, before: Value | None) -> Value:
    """Return what the steps of the window from `first` to the next window's add to what was there before."""
    weight, bias, (count, filters, windows) = node.operands["weight"], node.operands.get("bias"), node.shape
    channels = data.shape[1]
    steps = min(_stride(node), weight.shape[2] - first)
    strides = data.shape[2] * channels, _stride(node) * channels, 1
    kept = slice(1 if count == 1 else 0, 3)  # one sequence is one matrix

    def squeeze(shape: Shape) -> Shape:
        return shape[kept]

    source = MemoryDescriptor(squeeze((count, windows, steps * channels)), node.dtype, squeeze(strides))
    rows = Value(data.buffer, source, data.offset + first * channels)
    columns = graph.reshape(_steps(weight, first, steps), squeeze((1, steps * channels, filters)))
    destination = channels_last(node.shape, node.dtype)
    result = dense(squeeze((count, windows, filters)), node.dtype)
    if bias is not None and before is None:
        bias = graph.reshape(graph.make_plain(bias), squeeze((1, 1, filters)))
    else:
        bias = None
    layouts = source, any_layout(columns.shape, node.dtype), None if bias is None else bias.descriptor, result
    packed = graph.primitive("matmul", *layouts).weights

    def create(post_ops: PostOps) -> Primitive:
        return graph.primitive("matmul", source, packed, *layouts[2:], post_ops=post_ops)

    def view(value: Value) -> Value | None:
        matrices = value.permute((0, 2, 1))
        return matrices.reshape((matrices.shape[0] * matrices.shape[1], matrices.shape[2])) if count == 1 else matrices

    arguments = {SOURCE: rows, WEIGHTS: graph.reorder(columns, packed)}
    if bias is not None:
        arguments[BIAS] = bias
    sums = [] if before is None else [Step("sum", algorithm="add", operand=before)]
    return execute(
        graph, node, destination, arguments, create, view=view, before=sums, width=filters, is_convolution=True
    )


def _steps(weight: Value, first: int, steps: int) -> Value:
    """Return some steps of the weights (filters, channels, steps) as (steps, channels, filters)."""
    transposed = weight.permute((2, 1, 0)).descriptor
    assert transposed.strides is not None
    part = MemoryDescriptor((steps, *transposed.shape[1:]), transposed.dtype, transposed.strides)
    return Value(weight.buffer, part, weight.offset + first * transposed.strides[0])
