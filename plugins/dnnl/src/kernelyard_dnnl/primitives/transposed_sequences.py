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

from kernelyard_dnnl.layout import channels_last
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitives.convolution import lower_in_window
from kernelyard_dnnl.primitives.convolution_geometry import geometry_of
from kernelyard_dnnl.primitives.post_ops import activations_of
from kernelyard_dnnl.values import Node, Value

# What zeros may add to the taps, where the stride does not divide them.
MAX_PADDED_TAPS = 9 / 8


def is_convolution_of_phases(node: Node) -> bool:
    """Return True for one sequence with constant weights, whose post-ops are the same for every step."""
    weight, bias, attrs = node.operands["weight"], node.operands.get("bias"), node.attrs
    if len(node.shape) != 3 or node.shape[0] != 1 or attrs["groups"] != 1 or attrs["dilation"][0] != 1:
        return False
    if not weight.is_constant or weight.descriptor.strides is None or not (bias is None or bias.is_constant):
        return False
    stride, taps = attrs["strides"][0], weight.shape[2]
    phases = math.ceil(taps / stride)
    made = (node.operands["data"].shape[2] + phases - 1) * stride
    return (
        stride > 1
        and phases * stride <= MAX_PADDED_TAPS * taps
        and node.sizes("padding_begin")[0] + node.shape[2] <= made
        and {node.dtype, *(value.descriptor.dtype for value in node.sequence)} == {"float32"}
        and activations_of(node) is not None
    )


def lower_phases(node: Node, graph: Lowering) -> Value:
    """Lower a conv_transpose node that `is_convolution_of_phases`."""
    data, weight, bias = node.operands["data"], node.operands["weight"], node.operands.get("bias")
    stride, taps, filters = node.attrs["strides"][0], weight.shape[2], node.shape[1]
    phases = math.ceil(taps / stride)

    def make_weight(key: str) -> Value:
        return graph.constant(_weight_of_phases(weight.array(), stride), key)

    operands = {"data": data, "weight": graph.packed.derived(weight, f"phases of {stride}", make_weight)}
    if bias is not None:

        def make_bias(key: str) -> Value:
            return graph.constant(np.tile(bias.array().reshape(-1), stride), key)

        operands["bias"] = graph.packed.derived(bias, f"{stride} times", make_bias)
    padding = (phases - 1,)
    attrs = {**node.attrs, "strides": (1,), "padding_begin": padding, "padding_end": padding}
    steps = data.shape[2] + phases - 1
    dense = replace(
        node, attrs=attrs, operands=operands, sequence=tuple(operands.values()), shape=(1, stride * filters, steps)
    )
    made = graph.channels_last(lower_in_window(dense, graph, operands["weight"], geometry_of(dense)))
    cropped = node.sizes("padding_begin")[0] * filters
    return Value(made.buffer, channels_last(node.shape, node.dtype), made.offset + cropped)


def _weight_of_phases(weight: np.ndarray, stride: int) -> np.ndarray:
    """Return weights (channels, filters, taps) as (stride * filters, channels, taps / stride), the taps in the order in
    which a convolution reads what came before."""
    channels, filters, taps = weight.shape
    phases = math.ceil(taps / stride)
    padded = np.zeros((channels, filters, phases * stride), weight.dtype)
    padded[:, :, :taps] = weight
    parts = padded.reshape(channels, filters, phases, stride)[:, :, ::-1]
    return np.ascontiguousarray(parts.transpose(3, 1, 0, 2)).reshape(stride * filters, channels, phases)
