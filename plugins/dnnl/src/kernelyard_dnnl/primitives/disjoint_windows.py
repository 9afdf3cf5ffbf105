"""conv_transpose whose windows lie side by side, as those that double an image in a U-Net: a convolution of one pixel.

Each pixel of the data makes a window of the result of its own, all of its channels at once; a copy puts the windows in
their rows. oneDNN's own transposed convolutions take 4 to 14 ms to describe at each new size, where this takes 1, and
apply no post-ops: a second pass over the result does. So the copy costs nothing where there are any.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kernelyard_dnnl.layout import channels_last
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitives.convolution import lower_convolution
from kernelyard_dnnl.primitives.post_ops import activations_of
from kernelyard_dnnl.primitives.transposed_sequences import repeat_vector
from kernelyard_dnnl.values import Node, Value


def are_windows_disjoint(node: Node) -> bool:
    """Return True for constant weights over an image, with a bias or post-ops, whose windows of several pixels neither
    overlap nor leave gaps."""
    data, weight, attrs = node.operands["data"], node.operands["weight"], node.attrs
    strides = tuple(attrs["strides"])
    return (
        len(node.shape) > 3
        and math.prod(strides) > 1
        and weight.is_constant
        and weight.shape[2:] == strides
        and attrs["groups"] == 1
        and set(attrs["dilation"]) == {1}
        and not any(node.sizes("padding_begin"))
        and node.shape[2:] == tuple(size * stride for size, stride in zip(data.shape[2:], strides, strict=True))
        and {node.dtype, *(value.descriptor.dtype for value in node.sequence)} == {"float32"}
        and bool(node.post_ops or "bias" in node.operands)
        and activations_of(node) is not None
    )


def lower_disjoint_windows(node: Node, graph: Lowering) -> Value:
    """Lower a conv_transpose node for which `are_windows_disjoint`."""
    data, strides, filters = node.operands["data"], tuple(node.attrs["strides"]), node.shape[1]
    rank, pixels = len(strides), math.prod(strides)
    operands = {"data": data, "weight": _weight_of_pixels(node.operands["weight"], graph)}
    if "bias" in node.operands:
        operands["bias"] = repeat_vector(node.operands["bias"], pixels, graph)
    count, _, *space = data.shape
    none, shape = (0,) * rank, (count, pixels * filters, *space)
    attrs = {**node.attrs, "strides": (1,) * rank, "padding_begin": none, "padding_end": none}
    sequence = tuple(operands.values())
    convolution = replace(node, attrs=attrs, operands=operands, sequence=sequence, shape=shape)
    made = _make_channels_inner(graph.make_channels_last(lower_convolution(convolution, graph)))
    windows = graph.reshape(made, (count, *space, *strides, filters))
    # Each dim of the windows goes behind that of the pixels which made them.
    pairs = [axis for dim in range(1, rank + 1) for axis in (dim, dim + rank)]
    windows = windows.permute((0, *pairs, 2 * rank + 1))
    result = graph.new(channels_last(node.shape, node.dtype))
    graph.copy_into(windows, graph.reshape(_make_channels_inner(result), windows.shape), "windows side by side")
    return result


def _make_channels_inner(value: Value) -> Value:
    """Return the same bytes with the channels as the last dim."""
    return value.permute((0, *range(2, len(value.shape)), 1))


def _weight_of_pixels(weight: Value, graph: Lowering) -> Value:
    """Return constant weights (channels, filters, window...) as those of a window of one pixel, with filters for each
    pixel of the window."""
    channels, filters, *window = weight.shape

    def make(key: str) -> Value:
        parts = np.moveaxis(weight.array(), (0, 1), (-1, -2))
        shape = math.prod(window) * filters, channels, *(1 for _ in window)
        return graph.constant(np.ascontiguousarray(parts).reshape(shape), key)

    return graph.packed.derive(weight, "windows side by side", make)
