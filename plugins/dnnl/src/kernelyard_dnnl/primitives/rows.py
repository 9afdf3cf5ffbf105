"""Row-wise primitives over the innermost axes of a matrix, whatever the layout of the operand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive_kind import Refusal
from kernelyard_dnnl.primitives.post_ops import Create, execute
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate


def check_rows(candidate: Candidate, axes: Sequence[int]) -> Refusal | None:
    """oneDNN has real implementations for rows alone; making rows by a transposition is slower than a kernel."""
    x = candidate.operands[0]
    shape, order = x.tensor_type.shape, candidate.order_of(x)
    if order is None:
        return None
    order = [axis for axis in order if shape[axis] != 1]
    moving = {axis for axis in axes if shape[axis] != 1}
    if moving == set(order[len(order) - len(moving) :]):
        return None
    where = f"{candidate.op_name} over axes {tuple(axes)}, which are not innermost in memory"
    return Refusal("reference-implementation", f"oneDNN has only its reference implementation for {where}")


class Rows(NamedTuple):
    """A tensor as a matrix whose rows lie along some axes, and the layout of the tensor that has these rows."""

    matrix: Value
    layout: MemoryDescriptor

    def show(self, value: Value) -> Value | None:
        """Return a tensor of the same layout as a matrix; None for tensors that only broadcast to it."""
        if value.shape != self.layout.shape:
            return None
        return value.view_as(dense(self.matrix.shape, value.descriptor.dtype))


def rows_along(graph: Lowering, x: Value, axes: Shape, dtype: str) -> Rows:
    """Return the rows of a tensor along some axes, for a result of that dtype; a copy is made only where these are not
    innermost in memory.
    """
    x = graph.make_strided(x)
    order = (*(other for other in x.descriptor.order if other not in axes), *axes)
    ordered = graph.make_plain(x.permute(order))
    size = math.prod(x.shape[axis] for axis in axes)
    matrix = graph.reshape(ordered, (math.prod(x.shape) // max(size, 1), size))
    return Rows(matrix, dense(x.shape, dtype, order))


def execute_rows(node: Node, graph: Lowering, rows: Rows, arguments: dict[int, Value], create: Create) -> Value:
    """Emit the primitive over the rows, with the node's post-ops; the result may overwrite them."""
    busy = [value for role, value in node.operands.items() if role != "x"]
    source = arguments[SOURCE]
    reuse = source if source.descriptor.dtype == node.dtype and graph.may_overwrite(source, busy) else None
    return execute(graph, node, rows.layout, arguments, create, reuse=reuse, view=rows.show)
