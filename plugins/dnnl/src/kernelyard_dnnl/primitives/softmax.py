"""softmax and log_softmax, over the rows of a matrix.

Node schema: operand x; attribute axis; post-ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.lowering import SOURCE, Lowering
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitive_attributes import PostOps
from kernelyard_dnnl.primitive_kind import Follows, PrimitiveKind, Refusal
from kernelyard_dnnl.primitives.rows import check_rows, execute_rows, rows_along
from kernelyard_dnnl.values import Node, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

ALGORITHMS = {"softmax": 196608, "log_softmax": 196609}


def check(softmax: Candidate) -> Refusal | None:
    """Require the axis that is innermost in memory."""
    return check_rows(softmax, (softmax.attrs["axis"],))


def attributes(group: Composite) -> dict[str, int]:
    """Return the axis, counted from the front."""
    return {"axis": group.anchor.attrs["axis"] % group.anchor.tensor_type.rank}


def lower_softmax(node: Node, graph: Lowering) -> Value:
    """Lower a softmax or log_softmax node."""
    x = node.operands["x"]
    rows = rows_along(graph, x, (node.attrs["axis"] % len(x.shape),), node.dtype)
    source, result = rows.matrix.descriptor, dense(rows.matrix.shape, node.dtype)

    def create(post_ops: PostOps) -> Primitive:
        arguments = (enums.FORWARD_INFERENCE, ALGORITHMS[node.op], source, result, 1)
        return graph.primitive("softmax_forward", *arguments, post_ops=post_ops)

    return execute_rows(node, graph, rows, {SOURCE: rows.matrix}, create)


SOFTMAX = PrimitiveKind(
    node="softmax",
    summary="`nn.softmax`, `nn.log_softmax` over the axis that is innermost in memory",
    ops=("nn.softmax",),
    operands=("x",),
    attributes=attributes,
    check=check,
    follows=Follows.CAST,
    lower=lower_softmax,
    pattern="softmax",
    enumerators={"dnnl_softmax_accurate": ALGORITHMS["softmax"], "dnnl_softmax_log": ALGORITHMS["log_softmax"]},
)
LOG_SOFTMAX = SOFTMAX._replace(node="log_softmax", ops=("nn.log_softmax",))
