"""Branches whose results differ in rank, dtype or kind: the nodes that follow are converted once in each branch.

No type says what such an `If` returns. So the nodes that read its results become part of both branches, up to the first
place where all that is still needed has one dtype and one rank: there the program takes one of the branches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from kernelyard.errors import KernelyardError
from kernelyard.plugins.api import Expr, RejectedError
from kernelyard_onnx.computed_values import names_read
from kernelyard_onnx.converters.branches import branch_on
from kernelyard_onnx.graph_builder import GraphBuilder
from kernelyard_onnx.node import Node
from kernelyard_onnx.outlined_graph import OutlinedGraph
from kernelyard_onnx.problems import DifferingBranchesError

if TYPE_CHECKING:
    from kernelyard_onnx.scope import Scope

MAX_CONTINUED = 3  # every such `If` inside another one doubles the code
MAX_FOLLOWING = 256  # nodes that are converted twice: beyond that, a program for what comes is the smaller one


@dataclass
class _Side:
    """One branch so far: the nodes that follow are converted up to `position`."""

    builder: GraphBuilder
    scope: Scope
    position: int = 0


def continue_in_branches(
    error: DifferingBranchesError, following: Sequence[onnx.NodeProto], scope: Scope, wanted: Collection[str]
) -> list[onnx.NodeProto]:
    """Convert an `If` with what follows it, as far as its branches need it; return the nodes that are left.

    following: the nodes after it. wanted: the names that the graph returns.
    Raises: `error`, where the branches never come to the same types, or where a node works on one of them only.
    """
    importer = error.node.importer
    dependent = _dependents(following, error.node.proto.output)
    chosen = set(map(id, dependent))
    read_later = {name for node in dependent for name in names_read(node)}
    importer.run_nodes([node for node in following if id(node) not in chosen], scope, {*wanted, *read_later})
    before = len(importer.problems)
    try:
        consumed = _join(error, dependent, scope, wanted)
    except (RejectedError, KernelyardError) as failure:
        del importer.problems[before:]
        raise error from failure
    return dependent[consumed:]


def _join(
    error: DifferingBranchesError, following: Sequence[onnx.NodeProto], scope: Scope, wanted: Collection[str]
) -> int:
    """Convert both branches and what follows until their results agree, and emit the `If`; how many nodes it took.

    Raises: RejectedError, KernelyardError.
    """
    node = error.node
    if scope.continued >= MAX_CONTINUED:
        raise RejectedError(f"more than {MAX_CONTINUED} branches of different types follow one another")
    sides = [_begin(node, name, scope) for name in ("then_branch", "else_branch")]
    position, live = _convert_branches(node, sides, following, wanted)
    if live:
        graphs = [_outline(side, live) for side in sides]
        scope.values.update(zip(live, branch_on(node, node.input(0), graphs), strict=True))
    return position


def _convert_branches(
    node: Node, sides: Sequence[_Side], following: Sequence[onnx.NodeProto], wanted: Collection[str]
) -> tuple[int, list[str]]:
    """Convert nodes in both branches until these agree; return how many, and the names that are still needed.

    Raises: RejectedError, KernelyardError.
    """
    last_reader = _find_last_readers(following, wanted)
    made = _names_made([node.proto])
    position = 0
    while True:
        live = [name for name in made if last_reader.get(name, -1) >= position]
        if _agree(sides, live):
            return position, live
        if position >= min(len(following), MAX_FOLLOWING):
            raise RejectedError("its branches never come to results of the same types")
        behind, ahead = sorted(sides, key=_position)
        _advance(node, behind, following, wanted)
        if ahead.position == position:
            _advance(node, ahead, following, wanted)
        passed = min(map(_position, sides))
        made += _names_made(following[position:passed])
        position = passed


def _begin(node: Node, branch: str, scope: Scope) -> _Side:
    side = _Side(GraphBuilder(node.builder), scope.inner())
    side.scope.continued += 1
    with node.importer.building(side.builder):
        results = node.importer.run_subgraph(node.require_attr(branch), node.scope)
    if len(results) != len(node.proto.output):
        raise RejectedError(f"a branch returns {len(results)} results")
    for name, value in zip(node.proto.output, results, strict=True):
        if name and value is not None:
            side.scope.values[name] = value
    return side


def _advance(node: Node, side: _Side, following: Sequence[onnx.NodeProto], wanted: Collection[str]) -> None:
    """Convert the next node in a branch; an `If` that differs again with as much of what follows as it needs."""
    proto = following[side.position]
    side.position += 1
    with node.importer.building(side.builder):
        try:
            is_converted = node.importer.run_node(proto, side.scope)
        except DifferingBranchesError as inner:
            side.position += _join(inner, following[side.position :], side.scope, wanted)
            return
    if not is_converted or any(map(side.scope.has_failed, proto.output)):
        raise RejectedError("a node that follows cannot be converted")


def _position(side: _Side) -> int:
    return side.position


def _names_made(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output if name]


def _find_last_readers(nodes: Sequence[onnx.NodeProto], wanted: Iterable[str]) -> dict[str, int]:
    """Return for each name the last of the nodes that reads it; their number for names that the graph returns."""
    last = {name: number for number, proto in enumerate(nodes) for name in names_read(proto)}
    return {**last, **dict.fromkeys(wanted, len(nodes))}


def _agree(sides: Sequence[_Side], names: Iterable[str]) -> bool:
    """Return whether the branches are equally far, and each name is a tensor of one dtype and rank in all of them."""
    if len(set(map(_position, sides))) > 1:
        return False
    for name in names:
        values = [side.scope.find(name) for side in sides]
        tensors = [value.tensor_type for value in values if isinstance(value, Expr)]
        kinds = {(tensor.dtype, tensor.rank) for tensor in tensors}
        if len(tensors) != len(values) or len(kinds) > 1:
            return False
    return True


def _outline(side: _Side, names: Iterable[str]) -> OutlinedGraph:
    values = [side.scope.find(name) for name in names]
    return OutlinedGraph(side.builder, (), [value for value in values if isinstance(value, Expr)])


def _dependents(nodes: Sequence[onnx.NodeProto], names: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes that read these names, directly or not; other `If`s, too, which may not have one type either."""
    known = set(names)
    found: list[onnx.NodeProto] = []
    for node in nodes:
        if node.op_type == "If" or not known.isdisjoint(names_read(node)):
            found.append(node)
            known.update(node.output)
    return found
