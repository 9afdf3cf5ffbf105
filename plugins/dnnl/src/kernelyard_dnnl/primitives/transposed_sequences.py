"""conv_transpose over a sequence as a convolution that makes all steps of a stride at once (polyphase decomposition).

With stride s, output o s + r, for each r < s, is a convolution of its own with every s-th tap of the window. So a dense
convolution of s times the filters, with ceil(k / s) taps, has them all, and channels last its result is the sequence as
it stands. It computes as quickly as oneDNN's own transposed convolutions, whose primitives take it time to describe
that grows with the length (0.2 s for 12,288 steps), and which apply no post-ops.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kernelyard_dnnl.layout import channels_last, dense
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitives.convolution import lower_convolution
from kernelyard_dnnl.primitives.post_ops import activations_of
from kernelyard_dnnl.values import Node, Value

# What zeros may add to the taps, where the stride does not divide them.
MAX_PADDED_TAPS = 9 / 8


def is_convolution_of_phases(node: Node) -> bool:
    """Return True for one sequence, whose post-ops are the same for every step."""
    weight, attrs = node.operands["weight"], node.attrs
    if len(node.shape) != 3 or node.shape[0] != 1 or attrs["groups"] != 1 or attrs["dilation"][0] != 1:
        return False
    stride, taps = attrs["strides"][0], weight.shape[2]
    phases = math.ceil(taps / stride)
    made = (node.operands["data"].shape[2] + phases - 1) * stride
    (begin,) = node.sizes("padding_begin")
    return (
        stride > 1
        and phases * stride <= (MAX_PADDED_TAPS if weight.is_constant else 1) * taps
        and 0 <= begin <= made - node.shape[2]  # nodes come from files, too
        and {node.dtype, *(value.descriptor.dtype for value in node.sequence)} == {"float32"}
        and activations_of(node) is not None
    )


def lower_phases(node: Node, graph: Lowering) -> Value:
    """Lower a conv_transpose node that `is_convolution_of_phases`."""
    data, weight, bias = node.operands["data"], node.operands["weight"], node.operands.get("bias")
    stride, filters = node.attrs["strides"][0], node.shape[1]
    phases = math.ceil(weight.shape[2] / stride)
    operands = {"data": data, "weight": _weight_of_phases(weight, stride, graph)}
    if bias is not None:
        operands["bias"] = repeat_vector(bias, stride, graph)
    padding = (phases - 1,)
    attrs = {**node.attrs, "strides": (1,), "padding_begin": padding, "padding_end": padding}
    steps = data.shape[2] + phases - 1
    convolution = replace(
        node, attrs=attrs, operands=operands, sequence=tuple(operands.values()), shape=(1, stride * filters, steps)
    )
    made = graph.make_channels_last(lower_convolution(convolution, graph))
    cropped = node.sizes("padding_begin")[0] * filters
    return Value(made.buffer, channels_last(node.shape, node.dtype), made.offset + cropped)


def _weight_of_phases(weight: Value, stride: int, graph: Lowering) -> Value:
    """Return weights (channels, filters, taps) as (stride * filters, channels, taps / stride), the taps in the order in
    which a convolution reads what came before."""
    channels, filters, taps = weight.shape
    phases = math.ceil(taps / stride)
    shape = stride * filters, channels, phases

    def make(key: str) -> Value:
        padded = np.zeros((channels, filters, phases * stride), np.float32)
        padded[:, :, :taps] = weight.array()
        parts = padded.reshape(channels, filters, phases, stride)[:, :, ::-1]
        return graph.constant(np.ascontiguousarray(parts.transpose(3, 1, 0, 2)).reshape(shape), key)

    if weight.is_constant:
        return graph.packed.derive(weight, f"phases of {stride}", make)
    weight, transposed = graph.make_viewable(weight), graph.new(dense((stride, filters, channels, phases), "float32"))
    for phase in range(phases):
        taps_of_phase = weight.part((0, 0, phase * stride), (channels, filters, stride)).permute((2, 1, 0))
        place = transposed.part((0, 0, 0, phases - 1 - phase), (stride, filters, channels, 1))
        graph.copy_into(graph.reshape(taps_of_phase, place.shape), place)
    return graph.reshape(transposed, shape)


def repeat_vector(bias: Value, times: int, graph: Lowering) -> Value:
    """Return a vector so many times after itself."""
    count = math.prod(bias.shape)

    def make(key: str) -> Value:
        return graph.constant(np.tile(bias.array().reshape(-1), times), key)

    if bias.is_constant:
        return graph.packed.derive(bias, f"{times} times", make)
    vector, repeated = graph.reshape(graph.make_plain(bias), (count,)), graph.new(dense((times * count,), "float32"))
    for first in range(0, times * count, count):
        graph.copy_into(vector, repeated.part((first,), (count,)))
    return repeated
