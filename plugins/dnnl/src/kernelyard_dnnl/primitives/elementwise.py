"""eltwise and binary, in whatever layout the operands come.

Node schema: eltwise: operand x; attributes algorithm, alpha, beta. binary: operands a, b (NumPy broadcasting);
attribute algorithm (add, sub, mul, div, max, min). Both take post-ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernelyard_dnnl.layout import MemoryDescriptor, dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.post_ops import BINARY as ALGORITHMS
from kernelyard_dnnl.post_ops import UNARY
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import Eltwise, PostOps
from kernelyard_dnnl.primitive_kind import Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.affine import are_decoded, lower_in_floats
from kernelyard_dnnl.primitives.post_ops import (
    SOURCE_1,
    Step,
    binary_primitive,
    broadcast_operand,
    eltwise_primitive,
    execute,
    expand,
    fast_pair,
    pad_shape,
    steps_of,
)
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard.plugins.api import KernelNode, Pattern
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

# a - b and a / b with the operands swapped: what makes b - a and b / a right again.
_UNDO_SWAP = {"sub": Eltwise("linear", -1.0, 0.0), "div": Eltwise("pow", 1.0, -1.0)}
ROUNDED = ("float32",)  # oneDNN's guide, "Eltwise"; integers are rounded as post-ops of float32


def check(arithmetic: Candidate) -> Refusal | None:
    """Activations, and arithmetic of two tensors that may be broadcast; sizes may turn out equal at run time."""
    if arithmetic.result.rank == 0:
        return Refusal("rank", "arithmetic of scalars")
    if arithmetic.op_name == "round" and arithmetic.result.dtype not in ROUNDED:
        return Refusal("dtype", f"oneDNN rounds {' and '.join(ROUNDED)} alone")
    return None


def anchor() -> Pattern:
    """Return an activation or arithmetic by itself: one pattern, so that the longest chain is found."""
    from kernelyard.plugins.api import is_op, wildcard
    from kernelyard_dnnl.patterns import activation

    return activation(wildcard()) | is_op(*ALGORITHMS)(wildcard(), wildcard())


def write_eltwise(composite: Composite) -> KernelNode:
    """Return the node of an activation.

    What is more than one function is a product with one: a binary primitive takes it all as post-ops, an eltwise one
    does not. Those of 8 bits, which have scales before them, are post-ops of a sum with nothing.
    """
    from kernelyard.plugins.api import Constant, KernelNode
    from kernelyard_dnnl.nodes import eltwise_post_op
    from kernelyard_dnnl.stages import functions_of

    x = composite.operands[0]
    first, *others = stages = functions_of(composite.anchor, x)
    if composite.is_of_integers:
        zero = Constant(np.zeros((), np.uint8))
        nothing = [("b", zero), ("b_scale", Constant(np.ones((), np.float32))), ("b_zero", zero)]
        attrs = {"algorithm": "add", "post_ops": [eltwise_post_op(stage) for stage in stages]}
        return KernelNode("binary", (("a", x), *nothing), attrs)
    if others or composite.stages:
        attrs = {"algorithm": "mul", "post_ops": [eltwise_post_op(stage) for stage in stages]}
        return KernelNode("binary", (("a", x), ("b", Constant(np.ones((), np.float32)))), attrs)
    return KernelNode("eltwise", (("x", x),), first.attributes())


def lower_eltwise(node: Node, graph: Lowering) -> Value:
    """Lower an eltwise node, in place if the operand is dead afterwards."""
    source = graph.make_gapless(node.operands["x"])
    attrs = node.attrs
    op = Eltwise(attrs["algorithm"], float(attrs.get("alpha", 0.0)), float(attrs.get("beta", 0.0)))
    layout = source.descriptor
    operands = [value for role, value in node.operands.items() if role != "x"]
    reuse = source if graph.may_overwrite(source, operands) else None
    made = _lower_rounding(node, graph, source, [Step("eltwise", op)])
    if made is not None:
        return made

    def create(post_ops: PostOps) -> Primitive:
        return eltwise_primitive(graph, op, layout, post_ops)

    return execute(graph, node, layout, {SOURCE: source}, create, reuse=reuse)


def lower_binary(node: Node, graph: Lowering) -> Value:
    """Lower a binary node; the operand with the result's shape comes first, as oneDNN's fast code requires."""
    if are_decoded(node, "a"):
        result = _lower_of_integers(node, graph)
        return lower_in_floats(node, graph, lower_binary) if result is None else result
    left, right, algorithm = node.operands["a"], node.operands["b"], node.attrs["algorithm"]
    swapped = _is_second_better(left, right, node)
    if swapped:
        left, right = right, left
    left = _full(left, node, graph)
    undo = [Step("eltwise", _UNDO_SWAP[algorithm])] if swapped and algorithm in _UNDO_SWAP else []
    made = _lower_rounding(node, graph, left, [Step("binary", algorithm=algorithm, operand=right), *undo])
    if made is not None:
        return made
    pair = fast_pair(graph, algorithm, left, broadcast_operand(graph, right, left.descriptor))
    shown, right = pair
    others = [right, *(value for role, value in node.operands.items() if role not in ("a", "b"))]
    reuse = left if left.descriptor.dtype == node.dtype and graph.may_overwrite(left, others) else None
    arguments = {SOURCE: shown, SOURCE_1: right}

    def create(post_ops: PostOps) -> Primitive:
        return binary_primitive(graph, algorithm, shown.descriptor, right.descriptor, post_ops)

    def view(value: Value) -> Value | None:
        return _merge_dims_like(value, left.descriptor, shown)

    return execute(graph, node, left.descriptor, arguments, create, reuse=reuse, view=view, before=undo)


def _lower_rounding(node: Node, graph: Lowering, x: Value, before: Sequence[Step]) -> Value | None:
    """Lower steps and a node's post-ops by code of our own, where one of them rounds; else None."""
    steps = [*before, *steps_of(node)]
    if not any(step.eltwise is not None and step.eltwise.algorithm == "round" for step in steps):
        return None
    from kernelyard_dnnl.primitives.float_chain import lower_float_chain  # inside: few regions have it

    return lower_float_chain(node, graph, x, steps)


def _lower_of_integers(node: Node, graph: Lowering) -> Value | None:
    """Lower a binary node of one or two quantized operands; None where that is done in floats."""
    # inside: code of our own, which few regions have
    from kernelyard_dnnl.primitives.integer_arithmetic import lower_integer_arithmetic
    from kernelyard_dnnl.primitives.integer_norm import lower_integer_norm

    lower = lower_integer_arithmetic if are_decoded(node, "b") else lower_integer_norm
    return lower(node, graph)


def _is_second_better(left: Value, right: Value, node: Node) -> bool:
    """Return True when the second operand should be the first for oneDNN."""
    rank = len(node.shape)
    left_is_full, right_is_full = (pad_shape(side.shape, rank) == node.shape for side in (left, right))
    if left_is_full and right_is_full:
        # Same shapes: the layout that a library op chose wins over the plain layout of an input.
        return node.attrs["algorithm"] not in _UNDO_SWAP and left.descriptor.is_plain and not right.descriptor.is_plain
    return right_is_full


def _full(left: Value, node: Node, graph: Lowering) -> Value:
    """Return the first operand in the result's shape, spread out where both operands broadcast."""
    left = graph.reshape(left, pad_shape(left.shape, len(node.shape)))
    if left.shape != node.shape:
        return expand(graph, left, dense(node.shape, left.descriptor.dtype))
    return graph.make_gapless(left)


def _merge_dims_like(value: Value, layout: MemoryDescriptor, shown: Value) -> Value | None:
    """Return a tensor that broadcasts to `layout`, with the dims merged as in `shown`."""
    if shown.descriptor == layout:
        return value
    if value.shape == layout.shape:
        return value.view_as(MemoryDescriptor(shown.shape, value.descriptor.dtype, shown.descriptor.strides))
    return None


ELTWISE = PrimitiveKind(
    node="eltwise",
    summary="activations and arithmetic on their own, both operands broadcast",
    ops=(*UNARY, "power"),
    operands=("x",),
    check=check,
    follows=Follows.POST_OPS,
    order=MemoryOrder.WHOLE_OPERAND,
    lower=lower_eltwise,
    pattern="elementwise",
    is_light=True,
    on_integers=UNARY,
    anchor=anchor,
    write=write_eltwise,
)
BINARY = ELTWISE._replace(
    node="binary",
    ops=tuple(ALGORITHMS),
    operands=("a", "b"),
    attributes=lambda group: {"algorithm": ALGORITHMS[group.anchor.op_name]},
    lower=lower_binary,
    on_integers=("add", "subtract", "multiply"),
    write=None,
)
