"""matmul: matrix products of any rank; a constant right side is packed, and shared batches become rows.

Node schema: operands a, b, optional bias (N,), and those of the post-ops. Attributes transpose_a, transpose_b (of the
last two dims). Shapes as in `numpy.matmul`: rank 1 and broadcast batches included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, any_layout, dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive, speed
from kernelyard_dnnl.primitive_attributes import PostOps, RuntimeNumbers
from kernelyard_dnnl.primitive_kind import Follows, MemoryOrder, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.affine import are_decoded, lower_in_floats
from kernelyard_dnnl.primitives.post_ops import execute, pad_shape, steps_of
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

WEIGHTS, BIAS = enums.ARG["weights"], enums.ARG["bias"]


def check(product: Candidate) -> Refusal | None:
    """Any rank from 1, any batch broadcasting, any size symbolic; vectors that make a scalar are not worth a call."""
    if product.result.rank == 0:
        return Refusal("rank", "a matmul of two vectors")
    weight = product.call.args[1]
    if product.composite.decoders or not product.is_dequantized(weight):
        return None
    return Refusal("slow", "its weights are dequantized, which a generated kernel fuses into its loads", at=weight)


def attributes(group: Composite) -> dict[str, bool]:
    """Return which sides are transposed."""
    return {"transpose_a": 0 in group.readers, "transpose_b": 1 in group.readers}


class Form(NamedTuple):
    """The view of a matmul as oneDNN gets it: the result's shape as the node has it, with M and N, and as shown.

    folded: the batches count as rows of one matrix.
    """

    result: Shape
    matrix: Shape
    folded: bool

    @property
    def shape(self) -> Shape:
        return _fold(self.matrix) if self.folded else self.matrix

    def show(self, value: Value) -> Value | None:
        """Return a tensor that broadcasts to the result, in the form that oneDNN sees; None where that needs a copy."""
        padded = pad_shape(value.shape, len(self.result))
        if self.matrix != self.result:
            padded = self._with_matrix_dims(padded)
        if not self.folded:
            return value.reshape(padded)
        rows, whole = padded[:-1], self.matrix[:-1]
        if rows == whole:
            return value.reshape(_fold(padded))
        return value.reshape((1, padded[-1])) if math.prod(rows) == 1 else None

    def _with_matrix_dims(self, padded: Shape) -> Shape:
        # A rank-1 operand left out M or N, which is 1.
        missing_rows = self.matrix[-2] == 1 and self.result[-1:] == self.matrix[-1:]
        return (*padded[:-1], 1, padded[-1]) if missing_rows else (*padded, 1)


def lower_matmul(node: Node, graph: Lowering) -> Value:
    """Lower a matmul node."""
    is_of_integers = are_decoded(node, "a", "b")
    if is_of_integers:
        from kernelyard_dnnl.primitives.integer_product import can_multiply_integers, with_signed  # inside: few have it

        if not can_multiply_integers():
            return lower_in_floats(node, graph, lower_matmul)
        node = with_signed(node, graph, "b")
    left = _matrix(node.operands["a"], node.attrs.get("transpose_a", False), row=True)
    right = _matrix(node.operands["b"], node.attrs.get("transpose_b", False), row=False)
    matrix = _matrix_shape(left.shape, right.shape)
    form = _choose_form(node, graph, left, right, matrix)
    if form.folded:
        left = graph.reshape(left, (math.prod(left.shape[:-1]), left.shape[-1]))
        right = graph.reshape(right, right.shape[-2:])
    else:
        left, right = (graph.reshape(side, pad_shape(side.shape, len(matrix))) for side in (left, right))
    if not is_of_integers:
        return _product(node, graph, form, left, right)
    result = _integer_product(node, graph, form, left, right)
    return lower_in_floats(node, graph, lower_matmul) if result is None else result


def _matrix(value: Value, transposed: bool, *, row: bool) -> Value:
    """Return an operand with its transposition applied and, for a vector, the missing dim put in."""
    if len(value.shape) == 1:
        size = value.shape[0]
        shown = value.reshape((1, size) if row else (size, 1))
        assert shown is not None
        return shown
    if not transposed:
        return value
    rank = len(value.shape)
    return value.permute((*range(rank - 2), rank - 1, rank - 2))


def _matrix_shape(left: Shape, right: Shape) -> Shape:
    rank = max(len(left), len(right))
    batches = zip(pad_shape(left, rank)[:-2], pad_shape(right, rank)[:-2], strict=True)
    return (*(b if a == 1 else a for a, b in batches), left[-2], right[-1])


def _choose_form(node: Node, graph: Lowering, left: Value, right: Value, matrix: Shape) -> Form:
    """Make rows of batches where one right side serves them all and no post-op operand stands in the way."""
    whole = Form(node.shape, matrix, False)
    if len(matrix) == 2 or math.prod(right.shape[:-2]) != 1 or math.prod(matrix[:-2]) != math.prod(left.shape[:-2]):
        return whole
    folded = Form(node.shape, matrix, True)
    shown = (step.operand is None or folded.show(graph.make_plain(step.operand)) for step in steps_of(node))
    return folded if all(item is not None for item in shown) else whole


def _product(node: Node, graph: Lowering, form: Form, left: Value, right: Value) -> Value:
    shown = dense(form.shape, node.dtype)
    bias = node.operands.get("bias")
    if bias is not None:
        bias = graph.reshape(graph.make_plain(bias), (*(1,) * (len(form.shape) - 1), form.shape[-1]))
    bias_layout = None if bias is None else bias.descriptor
    source, weights = _layouts(graph, left, right, bias_layout, shown)

    def create(post_ops: PostOps) -> Primitive:
        return graph.primitive("matmul", source, weights, bias_layout, shown, post_ops=post_ops)

    arguments = {SOURCE: graph.reorder(left, source), WEIGHTS: graph.reorder(right, weights)}
    if bias is not None:
        arguments[BIAS] = bias
    return execute(graph, node, dense(node.shape, node.dtype), arguments, create, view=form.show, width=form.shape[-1])


def _integer_product(node: Node, graph: Lowering, form: Form, left: Value, right: Value) -> Value | None:
    """Return the product of 8-bit matrices; None where oneDNN has no fast code for it."""
    from kernelyard_dnnl.primitives.integer_product import integer_product
    from kernelyard_dnnl.primitives.requantization import execute_fused

    shown, columns = dense(form.shape, node.dtype), form.shape[-1]
    product = integer_product(node, graph, ("a", "b"), 1 << (len(form.shape) - 1), columns)
    bias = None if product.bias is None else graph.reshape(product.bias, (*(1,) * (len(form.shape) - 1), columns))
    bias_layout = None if bias is None else bias.descriptor
    numbers = tuple(product.given)
    source, weights = _layouts(graph, left, right, bias_layout, shown, numbers)

    def create(post_ops: PostOps) -> Primitive:
        return graph.primitive("matmul", source, weights, bias_layout, shown, post_ops=post_ops, numbers=numbers)

    arguments = {SOURCE: graph.reorder(left, source)} | ({} if bias is None else {BIAS: bias})
    destination = dense(node.shape, node.dtype)
    return execute_fused(graph, product.steps, product.given, destination, arguments, create, right, form.show)


def _layouts(
    graph: Lowering,
    left: Value,
    right: Value,
    bias: MemoryDescriptor | None,
    result: MemoryDescriptor,
    numbers: RuntimeNumbers = (),
) -> tuple[MemoryDescriptor, MemoryDescriptor]:
    """Layouts of both sides: as they are where oneDNN has fast code for that, else row-major."""
    best: tuple[int, MemoryDescriptor, MemoryDescriptor] | None = None
    for source, weights in _layout_choices(left, right):
        try:
            primitive = graph.primitive("matmul", source, weights, bias, result, numbers=numbers)
        except StatusError:
            continue
        rank = speed(primitive.implementation)
        if best is None or rank > best[0]:
            best = (rank, source, primitive.weights)
        if rank == 2:
            break
    if best is None:
        return dense(left.shape, left.descriptor.dtype), dense(right.shape, right.descriptor.dtype)
    return best[1:]


def _layout_choices(left: Value, right: Value) -> Iterator[tuple[MemoryDescriptor, MemoryDescriptor]]:
    plain_left = dense(left.shape, left.descriptor.dtype)
    plain_right = dense(right.shape, right.descriptor.dtype)
    packed = any_layout(right.shape, right.descriptor.dtype)
    lefts = [left.descriptor, plain_left] if left.descriptor.strides is not None else [plain_left]
    rights = [packed] if right.is_constant else [right.descriptor, plain_right]
    for weights in rights:
        for source in lefts:
            if weights.strides is not None or right.is_constant:
                yield source, weights


def _fold(shape: Shape) -> Shape:
    return (math.prod(shape[:-1]), shape[-1])


MATMUL = PrimitiveKind(
    node="matmul",
    summary=(
        "`matmul` of any rank, vectors too, batches broadcast; either side with its last two axes swapped by "
        "`permute_dims`"
    ),
    ops=("matmul",),
    operands=("a", "b"),
    attributes=attributes,
    check=check,
    follows=Follows.POST_OPS_AND_CASTS,
    order=MemoryOrder.ROW_MAJOR,
    reader="permute_dims",
    bias_axis=-1,
    lower=lower_matmul,
    on_integers=("matmul",),
)
