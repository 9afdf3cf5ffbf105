"""concat: tensors joined along an axis.

Node schema: operands in order (roles free); attribute axis; post-ops.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from kernelyard import dims
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import Shape, dense, itemsize
from kernelyard_dnnl.lowering import DESTINATION, Lowering
from kernelyard_dnnl.primitive import Descriptors
from kernelyard_dnnl.primitive_kind import FLOAT, INTEGERS, NARROW, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.post_ops import apply_steps, steps_of
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

CACHE_LINE = 64  # bytes
MIN_RUN = 16  # elements that are copied at a time; below, a generated kernel copies faster
# Elements that oneDNN copies at a time, on average: below, a reorder for each operand takes 0.1 to 0.6 of the time of
# its concat, on one thread or two; above, on two threads, they lose.
SHORT_RUN = 32
MULTIPLE_SOURCE = enums.ARG["multiple_src"]


def check(concat: Candidate) -> Refusal | None:
    """Any number of tensors along one axis; interleaved a few elements at a time only where images stay inside."""
    composite = concat.composite
    if 0 in concat.result.shape:
        return Refusal("empty", "tensors of which none has elements")
    is_stack = all(operand.tensor_type.shape[axis_of(composite)] == 1 for operand in composite.operands)
    if is_stack and any(map(concat.may_be_ours, (*concat.makers, *concat.users))):
        return None  # the runtime lays whole tensors one after the other, and leaves the rest to who reads them
    orders = [concat.order_of(operand) for operand in composite.operands]
    order = max((order for order in orders if order is not None), default=None)
    length = _run_length(composite, order)
    if length is None or length >= MIN_RUN or _is_image_between(concat, order):
        return None
    return Refusal("slow", f"contiguous runs of {length:g} elements; below {MIN_RUN} a generated kernel copies faster")


def _is_image_between(concat: Candidate, order: tuple[int, ...] | None) -> bool:
    """Return True for channels of images that oneDNN makes and reads, which a generated kernel would take out of their
    layout and bring back."""
    rank = concat.result.rank
    is_innermost = order is not None and rank > 2 and order[-1] == axis_of(concat.composite) != rank - 1
    return is_innermost and concat.is_between_ours


def _run_length(composite: Composite, order: tuple[int, ...] | None) -> float | None:
    """Return the average length of an operand's contiguous runs, in elements; None if it is not known."""
    if order is None:
        return None
    shape = composite.anchor.tensor_type.shape
    inner = dims.product(shape[axis] for axis in order[order.index(axis_of(composite)) :])
    return inner / len(composite.operands) if isinstance(inner, int) else None


def axis_of(composite: Composite) -> int:
    """Return the axis that a concat joins, counted from the front."""
    return composite.anchor.attrs["axis"] % composite.anchor.tensor_type.rank


def lower_concat(node: Node, graph: Lowering) -> Value:
    """Lower a concat node, in the layout that most of its operands have."""
    axis = node.attrs["axis"] % len(node.shape)
    if 0 in node.shape:  # with sizes that only come then; there may be no operand left to choose a layout by
        return apply_steps(graph, steps_of(node), graph.new(dense(node.shape, node.dtype)))
    roles = {entry["role"] for entry in node.post_ops if "role" in entry}
    names = [role for role in node.operands if role not in roles]
    operands = [graph.make_strided(node.operands[role]) for role in names if 0 not in node.operands[role].shape]
    order = _concat_order(operands, axis)
    result = graph.new(dense(node.shape, node.dtype, order))
    if order[-1] == axis and len(order) > 2 and node.shape[axis] < SHORT_RUN * len(operands):
        _copy_each(graph, operands, result, axis)
    else:
        _copy_all(graph, operands, result, axis)
    return apply_steps(graph, steps_of(node), result)


def _copy_each(graph: Lowering, operands: list[Value], result: Value, axis: int) -> None:
    """Copy each operand into a view of the result, from whatever order of dims it has."""
    begin = [0] * len(result.shape)
    for operand in operands:
        graph.copy_into(operand, result.part(begin, operand.shape))
        begin[axis] += operand.shape[axis]


def _copy_all(graph: Lowering, operands: list[Value], result: Value, axis: int) -> None:
    """Emit oneDNN's own primitive, which copies run after run."""
    order = result.descriptor.order
    sources = [graph.reorder(x, dense(x.shape, x.descriptor.dtype, order)) for x in operands]
    layouts = Descriptors(tuple(source.descriptor for source in sources))
    primitive = graph.primitive("concat", result.descriptor, len(sources), axis, layouts)
    graph.emit(primitive, {MULTIPLE_SOURCE + i: source for i, source in enumerate(sources)} | {DESTINATION: result})


def _concat_order(operands: list[Value], axis: int) -> Shape:
    """Return the order of dims to join in: the common one, unless that would interleave single elements."""
    order = _common_order(operands)
    inner = math.prod(operands[0].shape[other] for other in order[order.index(axis) + 1 :])
    if inner * itemsize(operands[0].descriptor.dtype) < CACHE_LINE and all(x.shape[axis] == 1 for x in operands):
        # Whole tensors one after the other; a reader that needs the elements interleaved gets a fast transposition.
        return (axis, *(other for other in order if other != axis))
    return order


def _common_order(operands: list[Value]) -> Shape:
    """Return the order of dims that holds most elements; a layout chosen by a primitive wins over row-major."""
    votes: Counter[Shape] = Counter()
    rank = len(operands[0].shape)
    for operand in operands:
        weight = operand.descriptor.nbytes * (1 if operand.descriptor.is_plain else 2)
        votes[operand.descriptor.order] += weight
    return max(votes, key=lambda order: (votes[order], order == tuple(range(rank))))


CONCAT = PrimitiveKind(
    node="concat",
    summary="along any axis",
    ops=("concat",),
    operands=(),
    attributes=lambda group: {"axis": axis_of(group)},
    check=check,
    order=MemoryOrder.FIRST_OPERAND,
    lower=lower_concat,
    dtypes=(FLOAT, NARROW, *INTEGERS),
    is_light=True,
)
