"""conv over a long sequence with wide padding: the inside without padding, and each end by itself.

oneDNN describes a convolution in a time that grows with the length of its rows where zeros reach further than a few
taps, as with dilated and causal ones: 35 ms for 10,240 steps, each time that it is asked. Without padding that takes
0.4 ms, and the convolution 0.96 of the time.
"""

from __future__ import annotations

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, any_layout, channels_last
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive, Vector, speed
from kernelyard_dnnl.primitives.convolution_geometry import Convolution, geometry_of
from kernelyard_dnnl.primitives.post_ops import activations_of
from kernelyard_dnnl.values import Node, Value

WEIGHTS, BIAS = enums.ARG["weights"], enums.ARG["bias"]
# Shorter sequences are described in few milliseconds, whatever their padding.
LONG = 1024
# Dilations up to this are described quickly, unless zeros reach as far as the window.
SMALL_DILATION = 2


class Part(NamedTuple):
    """A run of a convolution's result: what it reads of the data, how long it is and where, and the zeros around it."""

    first: int
    read: int
    place: int
    made: int
    zeros: tuple[int, int]


def has_wide_padding(node: Node) -> bool:
    """Return True for one long sequence whose zeros reach further than a few taps."""
    attrs = node.attrs
    if len(node.shape) != 3 or node.shape[0] != 1 or attrs["groups"] != 1 or attrs["strides"][0] != 1:
        return False
    reach, zeros = _reach(node), (*node.sizes("padding_begin"), *node.sizes("padding_end"))
    length = node.operands["data"].shape[2]
    dtypes = {node.dtype, *(value.descriptor.dtype for value in node.operands.values())}
    return (
        min(zeros) >= 0 < max(zeros)
        and (attrs["dilation"][0] > SMALL_DILATION or max(zeros) >= reach)
        and 0 < reach <= length // 2
        and length >= LONG
        and node.shape[2] == length + sum(zeros) - reach  # nodes come from files, too
        and dtypes == {"float32"}
    )


def lower_in_parts(node: Node, graph: Lowering, weight: Value) -> Value | None:
    """Lower a conv node that `has_wide_padding`; None where oneDNN has no fast code for it with its post-ops."""
    data, bias = node.operands["data"], node.operands.get("bias")
    fused, geometry = activations_of(node), geometry_of(node)
    if fused is None:
        return None
    if bias is not None:
        bias = graph.reshape(graph.make_plain(bias), (node.shape[1],))
    weights = any_layout(weight.shape, "float32")
    parts = [part for part in _parts(node, _reach(node)) if part.made]
    primitives = list[Primitive]()
    for part in parts:
        window = geometry._replace(padding_begin=Vector((part.zeros[0],)), padding_end=Vector((part.zeros[1],)))
        convolution = Convolution(graph, window, weights, None if bias is None else bias.descriptor)
        source, destination = (
            channels_last((1, channels, length), "float32")
            for channels, length in ((data.shape[1], part.read), (node.shape[1], part.made))
        )
        try:
            primitive = convolution.primitive(source, destination, fused)
        except StatusError:
            return None
        primitives.append(convolution.quickest(primitive))
    if speed(primitives[0].implementation) < 2:
        return None
    data, result = graph.make_channels_last(data), graph.new(channels_last(node.shape, "float32"))
    for primitive, part in zip(primitives, parts, strict=True):
        arguments = {
            SOURCE: _steps_from(data, part.first, primitive.source),
            WEIGHTS: graph.reorder(weight, primitive.weights),
            DESTINATION: _steps_from(result, part.place, primitive.destination),
        }
        graph.emit(primitive, arguments if bias is None else arguments | {BIAS: bias})
    return result


def _parts(node: Node, reach: int) -> list[Part]:
    """Return the inside, which reads no zeros, and both ends."""
    (begin,), (end,), length = node.sizes("padding_begin"), node.sizes("padding_end"), node.operands["data"].shape[2]
    return [
        Part(0, length, begin, length - reach, (0, 0)),
        Part(0, reach, 0, begin, (begin, 0)),
        Part(length - reach, reach, begin + length - reach, end, (0, end)),
    ]


def _reach(node: Node) -> int:
    """Return how many steps lie between the first and the last that a window reads."""
    return (node.operands["weight"].shape[2] - 1) * node.attrs["dilation"][0]


def _steps_from(value: Value, first: int, layout: MemoryDescriptor) -> Value:
    """Return some steps of one sequence whose channels are innermost."""
    return Value(value.buffer, layout, value.offset + first * value.shape[1])
