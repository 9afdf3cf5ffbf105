"""From a composite to a node of the JSON graph: which primitive, its operands by role, its attributes.

The lowering of the kind reads exactly these; the shapes stand beside them in the graph.
"""

from __future__ import annotations

from typing import Any

from kernelyard.plugins.api import Expr, KernelNode
from kernelyard_dnnl.composite import Composite
from kernelyard_dnnl.post_ops import Binary, Eltwise, Stage


def node_of(composite: Composite) -> KernelNode:
    """Return the node that computes a composite."""
    write = composite.kind.write or _written
    anchor = write(composite)
    inputs = list(anchor.inputs)
    if composite.bias is not None:
        inputs.append(("bias", composite.bias))
    post_ops: list[dict[str, Any]] = list(anchor.attrs.get("post_ops", ()))
    for stage in composite.stages:
        post_ops.append(_post_op(stage, composite, f"post{len(post_ops)}", inputs))
    return KernelNode(anchor.op, inputs, {**anchor.attrs, "post_ops": post_ops})


def _written(composite: Composite) -> KernelNode:
    kind = composite.kind
    roles = kind.operands or tuple(f"x{number}" for number in range(len(composite.operands)))
    inputs = tuple(zip(roles, composite.operands, strict=True))
    return KernelNode(kind.node, inputs, dict(kind.attributes(composite)))


def _post_op(stage: Stage, composite: Composite, role: str, inputs: list[tuple[str, Expr]]) -> dict[str, Any]:
    if not isinstance(stage, Binary):
        return eltwise_post_op(stage)
    inputs.append((role, stage.operand))
    same_shape = stage.operand.tensor_type.shape == composite.anchor.tensor_type.shape
    if stage.algorithm == "add" and same_shape:
        return {"kind": "sum", "role": role}
    return {"kind": "binary", "algorithm": stage.algorithm, "role": role}


def eltwise_post_op(stage: Eltwise) -> dict[str, Any]:
    """Return a function of one element, as a node's attribute `post_ops` has it."""
    return {"kind": "eltwise", **stage.attributes()}
