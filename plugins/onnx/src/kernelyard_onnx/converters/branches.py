"""`If` whose condition depends on data: both branches become functions, and the program takes one of them."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.plugins.api import Expr, TensorType, as_one
from kernelyard_onnx.node import Node
from kernelyard_onnx.outlined_graph import OutlinedGraph


def run_time_if(node: Node, condition: Expr) -> Sequence[Expr]:
    """Return the results of one of the two branches; sizes that differ between them are known once it has run."""
    importer = node.importer
    branches = [importer.outline(node.require_attr(name), node.scope) for name in ("then_branch", "else_branch")]
    counts = [len(branch.results) for branch in branches]
    if set(counts) != {len(node.proto.output)}:
        node.reject(f"its branches return {counts[0]} and {counts[1]} results")
    return branch_on(node, condition, branches)


def branch_on(node: Node, condition: Expr, branches: Sequence[OutlinedGraph]) -> Sequence[Expr]:
    """Return the results of the first branch where the condition holds, else those of the second.

    Raises: RejectedError for different dtypes or ranks.
    """
    importer = node.importer
    then_types, else_types = ([result.tensor_type for result in branch.results] for branch in branches)
    types = [common_type(node, a, b) for a, b in zip(then_types, else_types, strict=True)]
    captured = list(dict.fromkeys(var for branch in branches for var in branch.list_captured()))
    names = [
        importer.add_private(f"{node.label}_{kind}", branch.function(captured))
        for kind, branch in zip(("then", "else"), branches, strict=True)
    ]
    flag = node.reshape(condition, ())
    result = node.builder.if_(flag, names[0], names[1], captured, as_one(types))
    return [result] if len(types) == 1 else [node.builder.get(result, index) for index in range(len(types))]


def common_type(node: Node, left: TensorType, right: TensorType) -> TensorType:
    """Return the type of what may have either type: sizes that differ are sizes of their own.

    Raises: RejectedError for different dtypes or ranks.
    """
    if left.dtype != right.dtype or left.rank != right.rank:
        node.reject(f"its branches return {left!r} or {right!r}")
    shape = [a if a == b else node.new_size() for a, b in zip(left.shape, right.shape, strict=True)]
    return TensorType(tuple(shape), left.dtype)
