"""Sums and products of two quantized tensors, element by element, quantized again: one binary primitive on 8 bits, or
code of our own.

Scales belong to the primitive, which has no zero points: those are part of the post-ops.
"""

from __future__ import annotations

import numpy as np

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.lowering import SOURCE, Given, Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import Eltwise, PostOps, Runtime
from kernelyard_dnnl.primitives.affine import RESULT, Affine, affine_of
from kernelyard_dnnl.primitives.byte_arithmetic import Side, lower_byte_arithmetic
from kernelyard_dnnl.primitives.post_ops import SOURCE_1, Step, broadcast_operand, pad_shape, steps_of
from kernelyard_dnnl.primitives.requantization import UNCHANGED, Line, chain_of, execute_fused
from kernelyard_dnnl.values import Node, Value


def _side(node: Node, role: str) -> Side:
    """Return one of a node's operands."""
    affine = affine_of(node, role)
    assert affine is not None
    return Side(node.operands[role], *affine.numbers)


def lower_integer_arithmetic(node: Node, graph: Lowering) -> Value | None:
    """Lower a binary node of two quantized operands; None where oneDNN has no fast code for it."""
    left, right = (_side(node, role) for role in ("a", "b"))
    if node.attrs["algorithm"] == "sub":
        right = right._replace(scale=-right.scale)
    if _is_second_better(left.value, right.value, node):
        left, right = right, left
    left = left._replace(value=graph.reshape(left.value, pad_shape(left.value.shape, len(node.shape))))
    if left.value.shape != node.shape:
        return None
    left = left._replace(value=graph.make_gapless(left.value))
    right = right._replace(value=broadcast_operand(graph, right.value, left.value.descriptor))
    made = lower_byte_arithmetic(node, graph, left, right)
    return _emit_binary(node, graph, left, right) if made is None else made


def _emit_binary(node: Node, graph: Lowering, left: Side, right: Side) -> Value | None:
    result = affine_of(node, RESULT)
    algorithm = "mul" if node.attrs["algorithm"] == "mul" else "add"
    combine = _product if algorithm == "mul" else _sum
    scales, steps = combine(left, right, steps_of(node), result, node.dtype)
    given: Given = {
        Runtime("scales", argument): graph.numbers(np.array(scale, np.float32))
        for argument, scale in zip((SOURCE, SOURCE_1), scales, strict=True)
        if scale != 1
    }
    shown = left.value.descriptor
    destination = dense(node.shape, node.dtype, shown.order if shown.strides is not None else None)

    def create(post_ops: PostOps) -> Primitive:
        layouts = shown, right.value.descriptor, destination
        return graph.primitive("binary", enums.BINARY[algorithm], *layouts, post_ops=post_ops, numbers=tuple(given))

    arguments = {SOURCE: left.value, SOURCE_1: right.value}
    return execute_fused(graph, steps, given, destination, arguments, create)


def _sum(
    left: Side, right: Side, steps: list[Step], result: Affine | None, dtype: str
) -> tuple[tuple[float, float], list[Step]]:
    """Return the scales of both sides, and the post-ops of their sum."""
    offset = -left.scale * left.zero - right.scale * right.zero
    line, after = chain_of(steps, result, dtype, Line(1.0, offset))
    scales = left.scale * line.scale, right.scale * line.scale
    return scales, [*Line(1.0, line.offset).steps, *after]


def _product(
    left: Side, right: Side, steps: list[Step], result: Affine | None, dtype: str
) -> tuple[tuple[float, float], list[Step]]:
    """Return the scales of both sides, and the post-ops of their product; one of them has the zero point 0.

    (a - z) * b is (a * b / z - b) * z.
    """
    scale = left.scale * right.scale
    if left.zero == right.zero == 0:
        line, after = chain_of(steps, result, dtype, Line(scale, 0.0))
        return (line.scale, 1.0), [*Line(1.0, line.offset).steps, *after]
    shifted, other = (left, right) if right.zero == 0 else (right, left)
    before = [
        Step("binary", algorithm="sub", operand=other.value),
        Step("eltwise", Eltwise("linear", scale * shifted.zero, 0.0)),
    ]
    line, after = chain_of([*before, *steps], result, dtype)
    assert line == UNCHANGED, "nothing stands before the subtraction"
    return (1.0 / shifted.zero, 1.0), after


def _is_second_better(left: Value, right: Value, node: Node) -> bool:
    """Return True when the second operand should be the first: it alone has the result's shape, or the layout that a
    primitive chose."""
    left_is_full, right_is_full = (pad_shape(side.shape, len(node.shape)) == node.shape for side in (left, right))
    if left_is_full and right_is_full:
        return left.descriptor.is_plain and not right.descriptor.is_plain
    return right_is_full
