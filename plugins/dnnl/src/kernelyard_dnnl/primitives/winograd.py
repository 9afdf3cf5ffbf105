"""conv by Winograd's algorithm, where that is faster than oneDNN's direct convolution: see `kernelyard_llvm.winograd`.

Node schema: that of conv; the attribute winograd (true where it is missing) allows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, channels_last
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitives import winograd_choice
from kernelyard_dnnl.primitives.post_ops import Step, apply_steps, broadcast_operand, pad_shape, steps_of
from kernelyard_dnnl.primitives.winograd_kernel import BIAS, WEIGHTS, make_kernel
from kernelyard_dnnl.primitives.winograd_weights import pack_weights
from kernelyard_dnnl.values import Node, Value
from kernelyard_llvm.winograd.epilogue import BINARY, ELTWISE, Stage
from kernelyard_llvm.winograd.kernel import Convolution, Depth, Layout
from kernelyard_llvm.winograd.record import MAX_OPERANDS


def lower_winograd(node: Node, graph: Lowering, m: int) -> Value:
    """Lower a conv node by F(m x m, 3 x 3)."""
    lanes, shape = winograd_choice.vector_lanes(), winograd_choice.shape_of(node)
    data, weight = _with_channels_inside(node.operands["data"], graph), node.operands["weight"]
    layout = channels_last(node.shape, node.dtype)
    fused, after = _split_steps(steps_of(node), node.shape)
    arguments = {SOURCE: data, WEIGHTS: pack_weights(graph.packed, weight, m, lanes)}
    bias = node.operands.get("bias")
    if bias is not None:
        arguments[BIAS] = graph.reshape(graph.make_plain(bias), (node.shape[1],))
    operands = {
        number: broadcast_operand(graph, step.operand, layout)
        for number, step in enumerate(fused)
        if step.operand is not None
    }
    result = _destination(graph, layout, operands, [data])
    *front, top, left = node.sizes("padding_begin")
    convolution = Convolution(
        m,
        shape,
        _layout(data.descriptor),
        _layout(layout),
        (top, left),
        bias is not None,
        _stages(fused, operands),
        {number: _layout(operand.descriptor) for number, operand in operands.items()},
        Depth(data.shape[2], node.shape[2], front[0]) if front else Depth(),
    )
    arguments |= {enums.post_op_argument(number): operand for number, operand in operands.items()}
    graph.emit(graph.defer(make_kernel, convolution, lanes, graph.threads), arguments | {DESTINATION: result})
    return apply_steps(graph, after, result)


def _layout(descriptor: MemoryDescriptor) -> Layout:
    """Return the layout of images; the planes of volumes are images that follow each other."""
    shape, strides = descriptor.shape, descriptor.strides
    assert strides is not None
    if len(shape) == 4:
        return Layout(shape, strides)
    volumes, channels, planes, *image = shape
    step = strides[2] if planes > 1 else strides[0]
    return Layout((volumes * planes, channels, *image), (step, strides[1], *strides[3:]))


def _with_channels_inside(value: Value, graph: Lowering) -> Value:
    """Return the tensor with the channels of a pixel contiguous; rows and pixels may have gaps between them, and so may
    images, but not the planes of volumes."""
    strides, shape = value.descriptor.strides, value.shape
    if strides is None or strides[1] != 1:
        return graph.make_channels_last(value)
    has_gaps = len(shape) == 5 and shape[0] != 1 and strides[0] != shape[2] * strides[2]
    return graph.make_channels_last(value) if has_gaps else value


def _split_steps(steps: Sequence[Step], shape: Shape) -> tuple[list[Step], list[Step]]:
    """Return the steps that the kernel does on its way, and those that primitives do afterwards."""
    for number, step in enumerate(steps):
        known = step.eltwise.algorithm in ELTWISE if step.eltwise is not None else step.algorithm in BINARY
        if not known or number == MAX_OPERANDS or not _is_even(step.operand, shape):
            return list(steps[:number]), list(steps[number:])
    return list(steps), []


def _is_even(operand: Value | None, shape: Shape) -> bool:
    """Return True for an operand that has one value for all planes of all volumes, or one for each."""
    if operand is None or len(shape) == 4:
        return True
    padded = pad_shape(operand.shape, len(shape))
    axes = [axis for axis in (0, 2) if shape[axis] != 1]
    return len({padded[axis] == 1 for axis in axes}) <= 1


def _stages(steps: Sequence[Step], operands: dict[int, Value]) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    for number, step in enumerate(steps):
        if step.eltwise is not None:
            stages.append(Stage(step.eltwise.algorithm, step.eltwise.alpha, step.eltwise.beta))
        else:
            stages.append(Stage(step.algorithm, operand=number, is_scalar=operands[number].shape[1] == 1))
    return tuple(stages)


def _destination(
    graph: Lowering, layout: MemoryDescriptor, operands: dict[int, Value], others: Sequence[Value]
) -> Value:
    """Choose the destination: in place of an operand with no other reader, as each pixel is read before the write."""
    for number, operand in operands.items():
        busy = [*others, *(other for key, other in operands.items() if key != number)]
        if operand.descriptor.has_same_layout(layout) and graph.may_overwrite(operand, busy):
            return operand.view_as(layout)
    return graph.new(layout)
