"""resample, concat, cast, reorder (a transposition), reshape and slice.

Node schema: resample: operand x (N, C, spatial...); attribute algorithm (nearest, linear); the sizes are those of the
result, output pixel o reads the input around (o + 0.5) * in / out - 0.5. concat: operands in order (roles free);
attribute axis. cast: operand x, to the dtype of the result. reorder: operand x; attribute axes, as in
`numpy.transpose`. reshape: operand x. slice: operand x; attributes axes, begin (dims: numbers, or expressions of the
symbols), strides (positive). resample and concat take post-ops.
"""

from __future__ import annotations

import math
from collections import Counter

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense, itemsize
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive import Descriptors, Factors, PostOps, Primitive
from kernelyard_dnnl.primitives.post_ops import apply_steps, execute, steps_of
from kernelyard_dnnl.values import Node, Value

CACHE_LINE = 64  # bytes
MULTIPLE_SOURCE = enums.ARG["multiple_src"]


def lower_resample(node: Node, graph: Lowering) -> Value:
    """Lowers a resample node, in the operand's layout."""
    x = graph.strided(node.operands["x"])
    source, result = x.descriptor, dense(node.shape, node.dtype, x.descriptor.order)
    factors = Factors(tuple(after / before for after, before in zip(node.shape[2:], x.shape[2:], strict=True)))
    algorithm = enums.RESAMPLING[node.attrs["algorithm"]]

    def create(post_ops: PostOps) -> Primitive:
        arguments = (enums.FORWARD_INFERENCE, algorithm, factors, source, result)
        return graph.primitive("resampling_forward", *arguments, post_ops=post_ops)

    return execute(graph, node, result, {SOURCE: x}, create)


def lower_concat(node: Node, graph: Lowering) -> Value:
    """Lowers a concat node, in the layout that most of its operands have."""
    axis = node.attrs["axis"] % len(node.shape)
    roles = {entry["role"] for entry in node.post_ops if "role" in entry}
    names = [role for role in node.operands if role not in roles]
    operands = [graph.strided(node.operands[role]) for role in names if 0 not in node.operands[role].shape]
    order = _concat_order(operands, axis)
    sources = [graph.reordered(x, dense(x.shape, x.descriptor.dtype, order)) for x in operands]
    result = graph.new(dense(node.shape, node.dtype, order))
    layouts = Descriptors(tuple(source.descriptor for source in sources))
    primitive = graph.primitive("concat", result.descriptor, len(sources), axis, layouts)
    graph.emit(primitive, {MULTIPLE_SOURCE + i: source for i, source in enumerate(sources)} | {DESTINATION: result})
    return apply_steps(graph, steps_of(node), result)


def _concat_order(operands: list[Value], axis: int) -> Shape:
    """The order of dims to join in: the common one, unless that would interleave single elements."""
    order = _common_order(operands)
    inner = math.prod(operands[0].shape[other] for other in order[order.index(axis) + 1 :])
    if inner * itemsize(operands[0].descriptor.dtype) < CACHE_LINE and all(x.shape[axis] == 1 for x in operands):
        # Whole tensors one after the other; who needs the elements side by side gets a fast transposition.
        return (axis, *(other for other in order if other != axis))
    return order


def _common_order(operands: list[Value]) -> Shape:
    """The order of dims that holds most elements; a layout chosen by a primitive wins over row-major."""
    votes: Counter[Shape] = Counter()
    rank = len(operands[0].shape)
    for operand in operands:
        weight = operand.descriptor.nbytes * (1 if operand.descriptor.is_plain else 2)
        votes[operand.descriptor.order] += weight
    return max(votes, key=lambda order: (votes[order], order == tuple(range(rank))))


def lower_permutation(node: Node, graph: Lowering) -> Value:
    """Lowers a reorder node: the same bytes with dims renamed; who needs another layout copies."""
    return graph.viewable(node.operands["x"]).permuted(tuple(node.attrs["axes"]))


def lower_cast(node: Node, graph: Lowering) -> Value:
    """Lowers a cast node: a copy in another dtype."""
    return graph.cast(node.operands["x"], node.dtype)


def lower_slice(node: Node, graph: Lowering) -> Value:
    """Lowers a slice node: some of the same bytes; who needs them without gaps copies."""
    x = graph.viewable(node.operands["x"])
    assert x.descriptor.strides is not None
    strides, offset = list(x.descriptor.strides), x.offset
    for axis, begin, step in zip(node.attrs["axes"], node.sizes("begin"), node.attrs["strides"], strict=True):
        offset += begin * strides[axis]
        strides[axis] *= step
    return Value(x.buffer, MemoryDescriptor(node.shape, node.dtype, tuple(strides)), offset)


def lower_reshape(node: Node, graph: Lowering) -> Value:
    """Lowers a reshape node: the same bytes where the layout allows, else a row-major copy."""
    return graph.reshaped(node.operands["x"], node.shape)
