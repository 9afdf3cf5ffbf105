"""A depthwise convolution together with the 1 x 1 convolution before it, as MobileNets have them: row by row, so that
the wide tensor between them is never in memory.

oneDNN has code for this where that tensor would not stay in the cores' own caches, which decides whether it is used:
the pair then takes 0.65 to 0.95 of the time. Smaller tensors are read from there as quickly as they were written.
"""

from __future__ import annotations

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import any_layout, channels_last
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Vector, speed
from kernelyard_dnnl.primitive_attributes import Depthwise
from kernelyard_dnnl.primitives.affine import affine_of
from kernelyard_dnnl.primitives.convolution_geometry import DIRECT
from kernelyard_dnnl.primitives.post_ops import activations_of
from kernelyard_dnnl.values import Node, Value

WEIGHTS, BIAS, DEPTHWISE = enums.ARG["weights"], enums.ARG["bias"], enums.ARG["depthwise"]
WINDOW = (3, 3)
STRIDES = (1, 2)


def lower_with_pointwise(node: Node, graph: Lowering, weight: Value) -> Value | None:
    """Lower a conv node in the place of the last operation; None where that is no 1 x 1 convolution for this node
    alone, or oneDNN has no code for both. weight: (groups, filters of a group, channels of a group, height, width)."""
    first = graph.last_maker(node.operands["data"])
    if first is None or first.op != "conv" or not _is_pointwise(first) or not _is_depthwise(node):
        return None
    if affine_of(first, "data") is not None:
        return None
    stride, bias = node.attrs["strides"][0], node.operands.get("bias")
    before, after = activations_of(first), activations_of(node)
    if before is None or after is None:
        return None
    operands = first.operands
    source, between = (channels_last(shape, node.dtype) for shape in (operands["data"].shape, first.shape))
    post_ops = (*before, Depthwise(stride, bias is not None), *after)
    zeros, unit = Vector((0, 0)), Vector((1, 1))
    weights = any_layout(operands["weight"].shape, node.dtype)
    first_bias = _vector(operands.get("bias"), graph)
    first_bias_layout = None if first_bias is None else first_bias.descriptor
    try:
        primitive = graph.primitive(
            "convolution_forward", enums.FORWARD_INFERENCE, DIRECT, source, weights,
            first_bias_layout, between, unit, zeros, zeros, zeros, post_ops=post_ops,
        )  # fmt: skip
    except StatusError:
        return None
    result = channels_last(node.shape, node.dtype)
    if speed(primitive.implementation) < 2 or not primitive.destination.has_same_layout(result):
        return None
    graph.take_back()
    arguments = {
        SOURCE: graph.reorder(operands["data"], source),
        WEIGHTS: graph.reorder(operands["weight"], primitive.weights),
        DEPTHWISE | WEIGHTS: graph.reorder(weight, primitive.depthwise_weights),
    }
    biases = {BIAS: first_bias, DEPTHWISE | BIAS: _vector(bias, graph)}
    arguments |= {number: value for number, value in biases.items() if value is not None}
    destination = graph.new(result)
    graph.emit(primitive, arguments | {DESTINATION: destination})
    return destination


def _is_pointwise(node: Node) -> bool:
    weight, attrs = node.operands["weight"], node.attrs
    still = all(step == 1 for step in attrs["strides"])
    padding = (*node.sizes("padding_begin"), *node.sizes("padding_end"))
    return still and weight.shape[2:] == (1, 1) and attrs["groups"] == 1 and not any(padding)


def _is_depthwise(node: Node) -> bool:
    """Return a window of 3 x 3 for each channel, as oneDNN has it as a post-op, in float32."""
    attrs, channels, weight = node.attrs, node.shape[1], node.operands["weight"]
    strides, begin, image = tuple(attrs["strides"]), node.sizes("padding_begin"), node.operands["data"].shape[2:]
    dtypes = {node.dtype, *(value.descriptor.dtype for value in node.operands.values())}
    return (
        weight.shape == (channels, 1, *WINDOW)
        and attrs["groups"] == channels == node.operands["data"].shape[1]
        and dtypes == {"float32"}
        and strides[0] == strides[1]
        and strides[0] in STRIDES
        and begin == (1, 1)
        and tuple(attrs["dilation"]) == (1, 1)
        and all((size - 1) // strides[0] + 1 == made for size, made in zip(image, node.shape[2:], strict=True))
    )


def _vector(bias: Value | None, graph: Lowering) -> Value | None:
    return None if bias is None else graph.reshape(graph.make_plain(bias), (max(bias.shape),))
