"""Control flow that is decided when the model is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter
from kernelyard_onnx.values import Value


@converter("If")
def conditional(node: Node) -> Sequence[Value | None]:
    """The branch that is taken stands in place of the node; the condition must not depend on data."""
    taken = bool(node.scalar(node.input(0), "condition"))
    branch = node.required_attr("then_branch" if taken else "else_branch")
    return node.importer.run_subgraph(branch, node.scope, {})
