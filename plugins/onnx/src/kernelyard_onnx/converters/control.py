"""Control flow that is decided when the model is compiled: branches are chosen, loops are unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernelyard.ir import Constant, Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter
from kernelyard_onnx.values import Value

if TYPE_CHECKING:
    import onnx

# Unrolled code grows with every turn: loops beyond this are refused, not attempted.
MAX_TURNS = 1024


@converter("If")
def conditional(node: Node) -> Sequence[Value | None]:
    """The branch that is taken stands in place of the node; the condition must not depend on data."""
    taken = bool(node.scalar(node.input(0), "condition"))
    branch = node.required_attr("then_branch" if taken else "else_branch")
    return node.importer.run_subgraph(branch, node.scope, {})


@converter("Loop")
def loop(node: Node) -> Sequence[Value | None]:
    """Unrolled: the number of turns, and whether to go on, must not depend on data."""
    body: onnx.GraphProto = node.required_attr("body")
    limit, condition = node.optional(0), node.optional(1)
    turns = MAX_TURNS + 1 if limit is None else int(node.scalar(limit, "trip count"))
    goes_on = condition is None or bool(node.scalar(condition, "condition"))
    carried: list[Value | None] = [node.value(index) for index in range(2, len(node.inputs))]
    stacks: list[list[Expr]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    turn = 0
    while goes_on and turn < turns:
        if turn == MAX_TURNS:
            node.reject(f"it takes more than {MAX_TURNS} turns")
        given = [Constant(np.int64(turn)), Constant(np.bool_(True)), *carried]
        results = _turn(node, body, given)
        goes_on = bool(node.scalar(_tensor(node, results[0]), "condition"))
        carried, scanned = list(results[1 : 1 + len(carried)]), results[1 + len(carried) :]
        for stack, value in zip(stacks, scanned, strict=True):
            stack.append(_tensor(node, value))
        turn += 1
    return [*carried, *(_stacked(node, stack, 0) for stack in stacks)]


def _turn(node: Node, body: onnx.GraphProto, given: Sequence[Value | None]) -> Sequence[Value | None]:
    named = {parameter.name: value for parameter, value in zip(body.input, given, strict=False) if value is not None}
    return node.importer.run_subgraph(body, node.scope, named)


def _tensor(node: Node, value: Value | None) -> Expr:
    return value if isinstance(value, Expr) else node.reject("its body makes something that is not a tensor")


def _stacked(node: Node, items: Sequence[Expr], axis: int) -> Expr:
    if not items:
        node.reject("it takes no turn, so that the type of what it collects is not known")
    parts = []
    for item in items:
        shape = node.shape(item)
        parts.append(node.reshape(item, (*shape[:axis], 1, *shape[axis:])))
    return parts[0] if len(parts) == 1 else node.op("concat", *parts, axis=axis)


@converter("Scan", since=9)
def scan(node: Node) -> Sequence[Value | None]:
    """Unrolled along an axis of fixed size."""
    body: onnx.GraphProto = node.required_attr("body")
    count = int(node.required_attr("num_scan_inputs"))
    inputs = node.required_inputs()
    states: list[Value | None] = list(inputs[: len(inputs) - count])
    scanned = inputs[len(inputs) - count :]
    outputs = len(body.output) - len(states)
    in_axes = [
        node.axis(axis, node.rank(value))
        for axis, value in zip(node.attr("scan_input_axes") or (0,) * count, scanned, strict=True)
    ]
    backwards = node.attr("scan_input_directions") or (0,) * count
    turns = _length(node, scanned, in_axes)
    stacks: list[list[Expr]] = [[] for _ in range(outputs)]
    for turn in range(turns):
        given = [
            _at(node, value, axis, turns - 1 - turn if backward else turn)
            for value, axis, backward in zip(scanned, in_axes, backwards, strict=True)
        ]
        results = _turn(node, body, [*states, *given])
        states = list(results[: len(states)])
        for stack, value in zip(stacks, results[len(states) :], strict=True):
            stack.append(_tensor(node, value))
    reverse = node.attr("scan_output_directions") or (0,) * outputs
    out_axes = node.attr("scan_output_axes") or (0,) * outputs
    made = []
    for stack, backward, axis in zip(stacks, reverse, out_axes, strict=True):
        rank = node.rank(stack[0]) + 1 if stack else 1
        made.append(_stacked(node, stack[::-1] if backward else stack, node.axis(axis, rank)))
    return [*states, *made]


def _length(node: Node, scanned: Sequence[Expr], axes: Sequence[int]) -> int:
    if not scanned:
        node.reject("it scans over nothing")
    length = node.shape(scanned[0])[axes[0]]
    if not isinstance(length, int):
        node.reject("the axis that it scans over has no fixed size")
    return length if length <= MAX_TURNS else node.reject(f"it takes more than {MAX_TURNS} turns")


def _at(node: Node, x: Expr, axis: int, index: int) -> Expr:
    part = node.slice(x, axis, index, index + 1)
    shape = node.shape(part)
    return node.reshape(part, (*shape[:axis], *shape[axis + 1 :]))
