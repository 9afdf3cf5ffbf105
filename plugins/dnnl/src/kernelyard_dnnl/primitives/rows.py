"""softmax, log_softmax and layer_norm: work on the rows of a matrix, whatever the layout of the operand.

Node schema: softmax, log_softmax: operand x; attribute axis. layer_norm: operands x, gamma, beta (of the dims `axes`);
attributes axes (ascending; default: the last), epsilon. All take post-ops.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive import PostOps, Primitive
from kernelyard_dnnl.primitives.post_ops import Create, execute
from kernelyard_dnnl.values import Node, Value

SCALE, SHIFT = enums.ARG["scale"], enums.ARG["shift"]


class Rows(NamedTuple):
    """A tensor as a matrix whose rows lie along some axes, and the layout of the tensor that has these rows."""

    matrix: Value
    layout: MemoryDescriptor

    def show(self, value: Value) -> Value | None:
        """A tensor of the same layout as a matrix; None for tensors that only broadcast to it."""
        if value.shape != self.layout.shape:
            return None
        return value.seen_as(dense(self.matrix.shape, value.descriptor.dtype))


def rows_along(graph: Lowering, x: Value, axes: Shape, dtype: str) -> Rows:
    """The rows of a tensor along some axes, for a result of that dtype; a copy is made only where these are not
    innermost in memory."""
    x = graph.strided(x)
    order = (*(other for other in x.descriptor.order if other not in axes), *axes)
    ordered = graph.plain(x.permuted(order))
    size = math.prod(x.shape[axis] for axis in axes)
    matrix = graph.reshaped(ordered, (math.prod(x.shape) // max(size, 1), size))
    return Rows(matrix, dense(x.shape, dtype, order))


def lower_softmax(node: Node, graph: Lowering) -> Value:
    """Lowers a softmax or log_softmax node."""
    x = node.operands["x"]
    rows = rows_along(graph, x, (node.attrs["axis"] % len(x.shape),), node.dtype)
    source, result = rows.matrix.descriptor, dense(rows.matrix.shape, node.dtype)

    def create(post_ops: PostOps) -> Primitive:
        arguments = (enums.FORWARD_INFERENCE, enums.SOFTMAX[node.op], source, result, 1)
        return graph.primitive("softmax_forward", *arguments, post_ops=post_ops)

    return _execute_rows(node, graph, rows, {SOURCE: rows.matrix}, create)


def lower_layer_norm(node: Node, graph: Lowering) -> Value:
    """Lowers a layer_norm node."""
    x = node.operands["x"]
    rows = rows_along(graph, x, tuple(node.attrs.get("axes", (len(x.shape) - 1,))), node.dtype)
    source, result = rows.matrix.descriptor, dense(rows.matrix.shape, node.dtype)
    size = rows.matrix.shape[-1]
    flags = enums.NORMALIZATION_FLAG["use_scale"] | enums.NORMALIZATION_FLAG["use_shift"]
    vector = dense((size,), "float32")  # whatever the dtype of the rows
    scale, shift = (graph.reordered(graph.reshaped(node.operands[role], (size,)), vector) for role in ("gamma", "beta"))

    def create(post_ops: PostOps) -> Primitive:
        arguments = (enums.FORWARD_INFERENCE, source, result, None, float(node.attrs["epsilon"]), flags)
        return graph.primitive("layer_normalization_forward", *arguments, post_ops=post_ops)

    arguments = {SOURCE: rows.matrix, SCALE: scale, SHIFT: shift}
    return _execute_rows(node, graph, rows, arguments, create)


def _execute_rows(node: Node, graph: Lowering, rows: Rows, arguments: dict[int, Value], create: Create) -> Value:
    busy = [value for role, value in node.operands.items() if role != "x"]
    source = arguments[SOURCE]
    reuse = source if source.descriptor.dtype == node.dtype and graph.may_overwrite(source, busy) else None
    return execute(graph, node, rows.layout, arguments, create, reuse=reuse, view=rows.show)
