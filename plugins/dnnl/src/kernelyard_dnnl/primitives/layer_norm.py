"""layer_norm, over the rows of a matrix.

Node schema: operands x, gamma, beta (of the dims `axes`); attributes axes (ascending; default: the last), epsilon;
post-ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

SCALE, SHIFT = enums.ARG["scale"], enums.ARG["shift"]
USE_SCALE, USE_SHIFT = 2, 4


def check(norm: Candidate) -> Refusal | None:
    """Over the last axes, or others that are known to be innermost in memory; their sizes must be known."""
    axes, shape = norm.attrs["axes"], norm.result.shape
    is_trailing = tuple(axes) == tuple(range(len(shape) - len(axes), len(shape)))
    if not is_trailing and norm.order_of(norm.operands[0]) is None:
        return Refusal("attribute", f"layer_norm over axes {axes}; oneDNN normalises over the last axes alone")
    return norm.check_known("the normalised sizes", *(shape[axis] for axis in axes)) or check_rows(norm, axes)


def attributes(group: Composite) -> dict[str, Any]:
    """Return axes and epsilon."""
    return {"axes": list(group.anchor.attrs["axes"]), "epsilon": group.anchor.attrs["epsilon"]}


def lower_layer_norm(node: Node, graph: Lowering) -> Value:
    """Lower a layer_norm node."""
    x = node.operands["x"]
    rows = rows_along(graph, x, tuple(node.attrs.get("axes", (len(x.shape) - 1,))), node.dtype)
    source, result = rows.matrix.descriptor, dense(rows.matrix.shape, node.dtype)
    size = rows.matrix.shape[-1]
    vector = dense((size,), "float32")  # whatever the dtype of the rows
    scale, shift = (graph.reorder(graph.reshape(node.operands[role], (size,)), vector) for role in ("gamma", "beta"))

    def create(post_ops: PostOps) -> Primitive:
        arguments = (enums.FORWARD_INFERENCE, source, result, None, float(node.attrs["epsilon"]), USE_SCALE | USE_SHIFT)
        return graph.primitive("layer_normalization_forward", *arguments, post_ops=post_ops)

    arguments = {SOURCE: rows.matrix, SCALE: scale, SHIFT: shift}
    return execute_rows(node, graph, rows, arguments, create)


LAYER_NORM = PrimitiveKind(
    node="layer_norm",
    summary="over the axes that are innermost in memory",
    ops=("nn.layer_norm",),
    operands=("x", "gamma", "beta"),
    attributes=attributes,
    check=check,
    follows=Follows.CAST,
    lower=lower_layer_norm,
    enumerators={"dnnl_use_scale": USE_SCALE, "dnnl_use_shift": USE_SHIFT},
)
