"""Post-ops: what a primitive does to its result before storing it, or what primitives of their own do afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from kernelyard.errors import CodegenError
from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.post_ops import PRELU
from kernelyard_dnnl.primitive import Primitive, speed
from kernelyard_dnnl.primitive_attributes import Binary, Eltwise, PostOp, PostOps, Prelu, Sum
from kernelyard_dnnl.primitives.affine import Affine, affine_of
from kernelyard_dnnl.values import Node, Value

SOURCE_1, WEIGHTS = enums.ARG["src_1"], enums.ARG["weights"]
VECTOR_WIDTH = 8
SPATIAL_RANK = 3  # of tensors that have space beside a batch and channels
CHEAP = frozenset(("relu", "linear", "clip", "clip_v2", "abs", "square", "hardsigmoid", "hardswish", "round"))
Create: TypeAlias = Callable[[PostOps], Primitive]
View: TypeAlias = Callable[[Value], "Value | None"]


class Step(NamedTuple):
    """One post-op with its second operand, broadcast shapes given the rank of the result; `affine`: how that is
    stored, where it is quantized."""

    kind: str
    eltwise: Eltwise | None = None
    algorithm: str = ""
    operand: Value | None = None
    affine: Affine | None = None


@dataclass(eq=False, repr=False)
class Epilogue:
    """A chain of post-ops ready for a primitive: the ops, their operands, and the tensor that receives the result."""

    destination: Value
    post_ops: PostOps = ()
    arguments: dict[int, Value] = field(default_factory=dict)


def steps_of(node: Node) -> list[Step]:
    """Return a node's post-ops with their operands.

    Raises: CodegenError for a kind that does not exist.
    """
    return [_step(entry, node) for entry in node.post_ops]


def activations_of(node: Node) -> PostOps | None:
    """Return a node's post-ops where they are functions of one element alone; else None."""
    steps = [step.eltwise for step in steps_of(node)]
    return None if None in steps else tuple(step for step in steps if step is not None)


def _step(entry: Mapping[str, Any], node: Node) -> Step:
    kind = entry["kind"]
    if kind == "eltwise":
        algorithm, alpha, beta = entry["algorithm"], float(entry.get("alpha", 0.0)), float(entry.get("beta", 0.0))
        return Step("eltwise", Eltwise(algorithm, alpha, beta))
    if kind in ("sum", "binary"):
        role, algorithm = entry["role"], entry.get("algorithm", "add")
        return Step(kind, algorithm=algorithm, operand=node.operands[role], affine=affine_of(node, role))
    raise CodegenError(f"unknown post-op {kind!r}", where=node.label, expected="eltwise, sum or binary")


def execute(
    graph: Lowering,
    node: Node,
    destination: MemoryDescriptor,
    arguments: dict[int, Value],
    create: Create,
    *,
    reuse: Value | None = None,
    view: View | None = None,
    before: Sequence[Step] = (),
    width: int = VECTOR_WIDTH,
    is_convolution: bool = False,
) -> Value:
    """Emit the primitive that `create` makes, with the node's post-ops fused where oneDNN has fast code for that.

    destination: the result's layout. arguments: everything but the destination and the post-ops' operands.
    reuse: a tensor that the result may overwrite. view: how tensors of the result's shape are shown to the primitive,
    None where it works on that shape itself; where an operand cannot be shown so, nothing is fused.
    before: post-ops that come before the node's own. width: of the innermost dim, over which fused ops are vectorised.
    is_convolution: the primitive reads an operand of one number per channel right where space is a single point.
    """
    steps, after = _split_steps([*before, *steps_of(node)], width, None if is_convolution else destination.shape)
    if after:
        node = replace(node, attrs={**node.attrs, "post_ops": ()})
        result = execute(
            graph,
            node,
            destination,
            arguments,
            create,
            reuse=reuse,
            view=view,
            before=steps,
            is_convolution=is_convolution,
        )
        return apply_steps(graph, after, result)
    if not steps:
        return emit_with(graph, create(()), arguments, Epilogue(_target(graph, destination, reuse)), view)
    for epilogue in epilogues(graph, steps, destination, arguments, reuse, view):
        try:
            primitive = create(epilogue.post_ops)
        except StatusError:
            continue
        fused = speed(primitive.implementation)
        if fused == 2 or fused >= speed(create(()).implementation):
            return emit_with(graph, primitive, arguments, epilogue, view)
    result = emit_with(graph, create(()), arguments, Epilogue(_target(graph, destination, reuse)), view)
    return apply_steps(graph, steps, result)


def _target(graph: Lowering, destination: MemoryDescriptor, reuse: Value | None) -> Value:
    return graph.new(destination) if reuse is None else reuse.view_as(destination)


def _split_steps(steps: list[Step], width: int, shape: Shape | None) -> tuple[list[Step], list[Step]]:
    """Return the steps to fuse, and those to do afterwards: where the innermost dim is narrow, a costly function would
    be computed with most lanes of a vector idle.
    """

    def is_apart(step: Step) -> bool:
        if step.eltwise is None:
            return shape is not None and is_of_single_points(step, shape)
        return width < VECTOR_WIDTH and step.eltwise.algorithm not in CHEAP

    first = next((i for i, step in enumerate(steps) if is_apart(step)), len(steps))
    return steps[:first], steps[first:]


def is_of_single_points(step: Step, shape: Shape) -> bool:
    """Return True for an operand of one number per channel where space is a single point: oneDNN 3.2's code for
    elementwise primitives and resampling takes the first of these numbers for all channels.
    """
    if step.operand is None or len(shape) < SPATIAL_RANK or any(size != 1 for size in shape[2:]):
        return False
    batch, channels, *_ = pad_shape(step.operand.shape, len(shape))
    return batch == 1 < channels


def emit_with(
    graph: Lowering, primitive: Primitive, arguments: dict[int, Value], epilogue: Epilogue, view: View | None
) -> Value:
    shown = epilogue.destination if view is None else view(epilogue.destination)
    assert shown is not None
    graph.emit(primitive, arguments | epilogue.arguments | {DESTINATION: shown})
    return epilogue.destination


def epilogues(
    graph: Lowering,
    steps: Sequence[Step],
    destination: MemoryDescriptor,
    arguments: dict[int, Value],
    reuse: Value | None,
    view: View | None,
) -> list[Epilogue]:
    """Return the ways to say these post-ops, best first: a residual that nobody else reads is added to in place."""
    operands = [None if s.operand is None else broadcast_operand(graph, s.operand, destination) for s in steps]
    ways = []
    inplace = _residual(graph, steps, operands, arguments, destination)
    for residual in dict.fromkeys((inplace, None)):
        epilogue = Epilogue(_target(graph, destination, reuse))
        if residual is not None:
            chosen = operands[residual]
            assert chosen is not None
            epilogue = Epilogue(chosen.view_as(destination))
        if _fill(epilogue, steps, operands, residual, view):
            ways.append(epilogue)
    return ways


def _fill(
    epilogue: Epilogue,
    steps: Sequence[Step],
    operands: Sequence[Value | None],
    residual: int | None,
    view: View | None,
) -> bool:
    post_ops: list[PostOp] = []
    for index, (step, operand) in enumerate(zip(steps, operands, strict=True)):
        if step.eltwise is not None:
            post_ops.append(step.eltwise)
        elif index == residual:
            post_ops.append(Sum())
        else:
            assert operand is not None
            shown = operand if view is None else view(operand)
            if shown is None:
                return False
            is_prelu = step.algorithm == PRELU
            post_ops.append((Prelu if is_prelu else partial(Binary, step.algorithm))(shown.descriptor))
            epilogue.arguments[enums.post_op_argument(index, "weights" if is_prelu else "src_1")] = shown
    epilogue.post_ops = tuple(post_ops)
    return True


def _residual(
    graph: Lowering,
    steps: Sequence[Step],
    operands: Sequence[Value | None],
    arguments: dict[int, Value],
    destination: MemoryDescriptor,
) -> int | None:
    """Return the index of the first post-op that can be a sum into the memory of its operand."""
    for index, step in enumerate(steps):
        operand = operands[index]
        if step.kind != "sum" or operand is None or not operand.descriptor.has_same_layout(destination):
            continue
        others = [other for place, other in enumerate(operands) if place != index and other is not None]
        if graph.may_overwrite(operand, [*arguments.values(), *others]):
            return index
    return None


def broadcast_operand(graph: Lowering, operand: Value, destination: MemoryDescriptor) -> Value:
    """Return a second operand for a result of that layout: the same rank, its dims in the same order in memory."""
    padded = pad_shape(operand.shape, destination.rank)
    value = graph.reshape(operand, padded)
    if padded == destination.shape and value.descriptor.dtype == destination.dtype:
        return graph.reorder(value, destination)
    order = destination.order if destination.strides is not None else None
    return graph.reorder(value, dense(padded, value.descriptor.dtype, order))


def pad_shape(shape: Shape, rank: int) -> Shape:
    """Return a shape with ones in front, up to that rank."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def apply_steps(graph: Lowering, steps: Sequence[Step], value: Value) -> Value:
    """Apply post-ops as primitives of their own, over the tensor in place; `value` must be fresh."""
    for step in steps:
        if step.eltwise is not None:
            primitive = eltwise_primitive(graph, step.eltwise, value.descriptor)
            graph.emit(primitive, {SOURCE: value, DESTINATION: value})
            continue
        assert step.operand is not None
        operand = broadcast_operand(graph, step.operand, value.descriptor)
        if step.algorithm == PRELU:
            primitive = prelu_primitive(graph, value.descriptor, operand.descriptor)
            graph.emit(primitive, {SOURCE: value, WEIGHTS: operand, DESTINATION: value})
            continue
        pair = fast_pair(graph, step.algorithm, value, operand)
        primitive = binary_primitive(graph, step.algorithm, pair[0].descriptor, pair[1].descriptor)
        graph.emit(primitive, {SOURCE: pair[0], SOURCE_1: pair[1], DESTINATION: pair[0]})
    return value


def apply_together(graph: Lowering, node: Node, steps: Sequence[Step], value: Value) -> Value:
    """Apply post-ops to a node's fresh result in place, in one pass where oneDNN has fast code for that."""
    first, *rest = steps
    if first.algorithm == PRELU:
        return apply_steps(graph, steps, value)
    if first.eltwise is not None:
        eltwise, arguments = first.eltwise, {SOURCE: value}

        def create(post_ops: PostOps) -> Primitive:
            return eltwise_primitive(graph, eltwise, value.descriptor, post_ops)
    else:
        assert first.operand is not None
        operand = broadcast_operand(graph, first.operand, value.descriptor)
        arguments = {SOURCE: value, SOURCE_1: operand}

        def create(post_ops: PostOps) -> Primitive:
            return binary_primitive(graph, first.algorithm, value.descriptor, operand.descriptor, post_ops)

        if speed(create(()).implementation) < 2:
            return apply_steps(graph, steps, value)
    return execute(graph, node, value.descriptor, arguments, create, reuse=value, before=rest)


def eltwise_primitive(graph: Lowering, op: Eltwise, layout: MemoryDescriptor, post_ops: PostOps = ()) -> Primitive:
    """Return the primitive that applies an eltwise algorithm from a tensor of that layout to another.

    Raises: StatusError.
    """
    forward, algorithm = enums.FORWARD_INFERENCE, enums.ELTWISE[op.algorithm]
    return graph.primitive("eltwise_forward", forward, algorithm, layout, layout, op.alpha, op.beta, post_ops=post_ops)


def binary_primitive(
    graph: Lowering, algorithm: str, left: MemoryDescriptor, right: MemoryDescriptor, post_ops: PostOps = ()
) -> Primitive:
    """Return the primitive that combines a tensor with one that broadcasts to it; the result has the layout of the
    first.

    Raises: StatusError.
    """
    return graph.primitive("binary", enums.BINARY[algorithm], left, right, left, post_ops=post_ops)


def prelu_primitive(graph: Lowering, layout: MemoryDescriptor, slopes: MemoryDescriptor) -> Primitive:
    """Return the primitive that multiplies what is negative by slopes. Raises: StatusError."""
    return graph.primitive("prelu_forward", enums.FORWARD_INFERENCE, layout, slopes, layout)


def fast_pair(graph: Lowering, algorithm: str, left: Value, right: Value) -> tuple[Value, Value]:
    """Return both operands of a binary, shown so that oneDNN has fast code: as they are, with dims merged, or the
    second spread out to the shape of the first."""
    pairs = [(left, right)]
    if left.descriptor.strides is not None:
        pairs.append(merge_dims(left, right))
    for pair in pairs:
        try:
            primitive = binary_primitive(graph, algorithm, pair[0].descriptor, pair[1].descriptor)
        except StatusError:
            continue
        if speed(primitive.implementation) == 2:
            return pair
    return left, expand(graph, right, left.descriptor)


def expand(graph: Lowering, value: Value, like: MemoryDescriptor) -> Value:
    """Return the tensor spread out to the shape and layout of another, to which it broadcasts (same rank)."""
    strides = value.descriptor.strides
    assert strides is not None
    spread = tuple(0 if size == 1 else stride for size, stride in zip(value.shape, strides, strict=True))
    source = value.view_as(MemoryDescriptor(like.shape, value.descriptor.dtype, spread))
    return graph.reorder(source, MemoryDescriptor(like.shape, value.descriptor.dtype, like.strides, like.blocked))


def merge_dims(left: Value, right: Value) -> tuple[Value, Value]:
    """Merge neighbouring dims of two tensors, dense in the same order, where both broadcast alike."""
    order = left.descriptor.order
    left, right = left.permute(order), right.permute(order)
    shape: list[list[int]] = []  # pairs (size of left, size of right)
    for a, b in zip(left.shape, right.shape, strict=True):
        if a == 1:
            continue
        if shape and (shape[-1][1] == 1) == (b == 1):
            shape[-1] = [shape[-1][0] * a, shape[-1][1] * b]
        else:
            shape.append([a, b])
    sizes = shape or [[1, 1]]
    merged = left.reshape(tuple(a for a, _ in sizes)), right.reshape(tuple(b for _, b in sizes))
    return (merged[0], merged[1]) if merged[0] and merged[1] else (left, right)
