"""Control flow. What is decided when the model is compiled is: branches are chosen, loops are unrolled.

What depends on data becomes branches and loops of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kernelyard.dims import Dim
from kernelyard.plugins.api import Constant, Expr, RejectedError, Var
from kernelyard_onnx.converters.branches import run_time_if
from kernelyard_onnx.converters.loops import ChangedTypeError, Loop
from kernelyard_onnx.converters.scan_products import hoist_products
from kernelyard_onnx.graph_builder import GraphBuilder
from kernelyard_onnx.node import Node
from kernelyard_onnx.outlined_graph import OutlinedGraph
from kernelyard_onnx.problems import DifferingBranchesError
from kernelyard_onnx.registry import converter
from kernelyard_onnx.values import Value

if TYPE_CHECKING:
    import onnx

# Unrolled code grows with every iteration: loops beyond this stay loops.
MAX_TURNS = 64
MAX_UNROLLED_NODES = 4096


@converter("If")
def conditional(node: Node) -> Sequence[Value | None]:
    """Return the branch that is taken stands in place of the node, where the condition does not depend on data."""
    taken = _evaluate_condition(node, node.input(0))
    if taken is None:
        try:
            return run_time_if(node, node.input(0))
        except RejectedError as error:
            if error.inputs or not str(error):
                raise
            raise DifferingBranchesError(str(error), node) from error
    branch = node.require_attr("then_branch" if taken else "else_branch")
    return node.importer.run_subgraph(branch, node.scope)


@converter("Loop")
def loop(node: Node) -> Sequence[Value | None]:
    """Unrolled where few iterations are certain when the model is compiled; else a loop of the program."""
    body: onnx.GraphProto = node.require_attr("body")
    limit, condition = node.optional(0), node.optional(1)
    unrolled = _unroll(node, body, limit, condition)
    if unrolled is not None:
        return unrolled
    deciding = [value for value in (limit, condition) if value is not None]
    starts = [value for value in node.inputs[2:] if isinstance(value, Expr)]
    if len(starts) != len(node.inputs[2:]):
        node.reject_undecided("a loop-carried value is not a tensor", *deciding)
    goes_on = Constant(np.array(True)) if condition is None else condition

    def turn(params: Sequence[Var], number: Var, states: Sequence[Expr]) -> OutlinedGraph:
        return node.importer.outline(body, node.scope, params, lambda _: [number, Constant(np.array(True)), *states])

    try:
        return _run(Loop(node, limit, goes_on, starts, turn), body)
    except RejectedError as error:
        if error.inputs or not str(error):
            raise
        node.reject_undecided(str(error), *deciding)


def _run(loop: Loop, body: onnx.GraphProto) -> list[Expr]:
    """Emit a loop; where an iteration is certain, and changes a type that a placeholder had, it stands before the loop.

    Raises: RejectedError.
    """
    node, count = loop.node, len(loop.starts)
    problems = node.importer.problems
    listed = len(problems)
    try:
        return loop.run()
    except ChangedTypeError:
        if not loop.is_entered():
            raise
    del problems[listed:]
    given = [Constant(np.int64(loop.first)), Constant(np.bool_(True)), *loop.starts]
    more, *results = [_tensor(node, value) for value in node.importer.run_subgraph(body, node.scope, given)]
    rest = replace(loop, goes_on=more, starts=results[:count], first=loop.first + 1).run()
    stacks = zip(results[count:], rest[count:], strict=True)
    return [*rest[:count], *(node.concat([node.unsqueeze(item, 0), stack], 0) for item, stack in stacks)]


def _unroll(
    node: Node, body: onnx.GraphProto, limit: Expr | None, condition: Expr | None
) -> Sequence[Value | None] | None:
    """Return the loop as so many copies of its body; None where data decides, or where they would be too many."""
    known = np.array(MAX_TURNS) if limit is None else node.builder.known.constant(limit)
    goes_on = True if condition is None else _evaluate_condition(node, condition)
    if known is None or goes_on is None:
        return None
    turn, turns = 0, int(known.reshape(-1)[0])
    if not _may_unroll(body, turns, _most_turns(node.inputs[2:])):
        return None
    listed = len(node.importer.problems)
    states: Sequence[Value | None] = node.inputs[2:]
    stacks: list[list[Expr]] = [[] for _ in body.output[1 + len(states) :]]
    while goes_on and turn < turns:
        given = [Constant(np.int64(turn)), Constant(np.bool_(True)), *states]
        more, *results = node.importer.run_subgraph(body, node.scope, given)
        goes_on = _evaluate_condition(node, _tensor(node, more))
        states = results[: len(states)]
        _append(node, stacks, results[len(states) :])
        turn += 1
    has_ended = goes_on is False or (limit is not None and turn >= turns)
    if not has_ended or not all(stacks):
        del node.importer.problems[listed:]
        return None
    return [*states, *(_stack(node, stack, 0) for stack in stacks)]


def _evaluate_condition(node: Node, condition: Expr) -> bool | None:
    """Return the truth of a condition; None where data decides it."""
    value = node.builder.known.constant(condition)
    return None if value is None else bool(value.reshape(-1)[0])


def _most_turns(states: Sequence[Value | None]) -> int:
    """Return how many iterations are unrolled: what carries a sequence cannot be a loop of the program."""
    return MAX_TURNS if all(isinstance(value, Expr) for value in states) else MAX_UNROLLED_NODES


def _may_unroll(body: onnx.GraphProto, turns: int, most: int = MAX_TURNS) -> bool:
    return turns <= most and turns * len(body.node) <= MAX_UNROLLED_NODES


def _tensor(node: Node, value: Value | None) -> Expr:
    return value if isinstance(value, Expr) else node.reject("its body returns a value that is not a tensor")


def _append(node: Node, stacks: Sequence[list[Expr]], values: Sequence[Value | None]) -> None:
    for stack, value in zip(stacks, values, strict=True):
        stack.append(_tensor(node, value))


def _stack(node: Node, items: Sequence[Expr], axis: int) -> Expr:
    if not items:
        node.reject("it runs no iteration, so that the type of its scan outputs is unknown")
    return node.stack(items, node.axis(axis, node.rank(items[0]) + 1))


@converter("Scan", since=9)
def scan(node: Node) -> Sequence[Value | None]:
    """Unrolled along an axis of fixed size, where few iterations are taken; else a loop of the program."""
    body: onnx.GraphProto = node.require_attr("body")
    inputs = node.require_inputs()
    states = inputs[: len(inputs) - int(node.require_attr("num_scan_inputs"))]
    scanned, collected = inputs[len(states) :], body.output[len(states) :]

    def numbers(name: str, items: Sequence[object]) -> Sequence[int]:
        return node.attr(name) or (0,) * len(items)

    axes = [node.axis(axis, node.rank(x)) for x, axis in zip(scanned, numbers("scan_input_axes", scanned), strict=True)]
    sources = zip(scanned, axes, numbers("scan_input_directions", scanned), strict=True)
    targets = zip(numbers("scan_output_axes", collected), numbers("scan_output_directions", collected), strict=True)
    turns = _length(node, scanned, axes)
    body, sources = hoist_products(node, body, list(sources))
    made = _Scan(node, body, states, sources, list(targets))
    return made.unroll(turns) if isinstance(turns, int) and _may_unroll(body, turns) else made.emit_loop(turns)


@converter("Scan", since=8)
def scan_of_batches(node: Node) -> Sequence[Value | None]:
    """Before opset 9, over the second axis of each element of a batch; both sizes fixed, and all sequences whole."""
    body: onnx.GraphProto = node.require_attr("body")
    count = int(node.require_attr("num_scan_inputs"))
    if node.value(0) is not None:
        node.reject("it has sequence_lens")
    inputs = [node.input(index) for index in range(1, len(node.inputs))]
    number = len(inputs) - count
    batch = node.require_fixed(node.shape(inputs[0])[0], "size of its batch")
    turns = node.require_fixed(_length(node, inputs[number:], [1] * count), "length of its sequences")
    if batch * turns * len(body.node) > MAX_UNROLLED_NODES:
        node.reject("its unrolled iterations have too many nodes")
    directions = node.attr("directions") or (0,) * count
    targets = [(0, 0)] * (len(body.output) - number)
    made: list[list[Expr]] = [[] for _ in body.output]
    for element in range(batch):
        parts = [node.select(x, 0, element) for x in inputs]
        sources = list(zip(parts[number:], [0] * count, directions, strict=True))
        _append(node, made, _Scan(node, body, parts[:number], sources, targets).unroll(turns))
    return [_stack(node, items, 0) for items in made]


def _length(node: Node, scanned: Sequence[Expr], axes: Sequence[int]) -> Dim:
    return node.shape(scanned[0])[axes[0]] if scanned else node.reject("it has no scan input")


@dataclass(frozen=True)
class _Scan:
    """A body that is repeated along axes of tensors.

    sources: the tensors, each with its axis and whether it is read backwards. targets: the axis along which each result
    of the iterations is collected, and whether backwards.
    """

    node: Node
    body: onnx.GraphProto
    states: Sequence[Expr]
    sources: Sequence[tuple[Expr, int, int]]
    targets: Sequence[tuple[int, int]]

    def unroll(self, turns: int) -> list[Value | None]:
        """Emit so many copies of the body; the last states, then what is collected."""
        node = self.node
        states: Sequence[Value | None] = self.states
        stacks: list[list[Expr]] = [[] for _ in self.targets]
        for turn in range(turns):
            rows = [
                node.select(x, axis, turns - 1 - turn if backwards else turn) for x, axis, backwards in self.sources
            ]
            results = node.importer.run_subgraph(self.body, node.scope, [*states, *rows])
            states = results[: len(states)]
            _append(node, stacks, results[len(states) :])
        made = [
            _stack(node, stack[::-1] if backwards else stack, axis)
            for stack, (axis, backwards) in zip(stacks, self.targets, strict=True)
        ]
        return [*states, *made]

    def emit_loop(self, turns: Dim) -> list[Value | None]:
        """Emit a loop; the last states, then what is collected."""
        node = self.node

        def turn(params: Sequence[Var], number: Var, states: Sequence[Expr]) -> OutlinedGraph:
            def inputs(builder: GraphBuilder) -> Sequence[Value | None]:
                last = builder.op("reshape", builder.op("shape_tensor", dims=(turns - 1,)), shape=())
                at = {0: number, 1: builder.op("subtract", last, number)}
                return [*states, *(builder.op("take", x, at[int(back)], axis=axis) for x, axis, back in self.sources)]

            graph = node.importer.outline(self.body, node.scope, params, inputs)
            return OutlinedGraph(graph.builder, graph.params, [Constant(np.array(True)), *graph.results])

        results = Loop(node, node.expr(turns, "int64"), Constant(np.array(True)), self.states, turn).run()
        count = len(self.states)
        stacks = zip(results[count:], self.targets, strict=True)
        return [*results[:count], *(self._move_stacked_axis(stack, *target) for stack, target in stacks)]

    def _move_stacked_axis(self, stack: Expr, axis: int, backwards: int) -> Expr:
        """Move the stacked axis from the front to its place, reversed if the direction asks for it."""
        flipped = self.node.op("flip", stack, axes=(0,)) if backwards else stack
        rank = self.node.rank(stack)
        to = self.node.axis(axis, rank)
        return self.node.permute(flipped, [*range(1, to + 1), 0, *range(to + 1, rank)])
