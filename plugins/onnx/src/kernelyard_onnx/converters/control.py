"""Control flow. What is decided when the model is compiled is: branches are chosen, loops are unrolled.

What depends on data becomes branches and loops of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernelyard.dims import Dim
from kernelyard.plugins.api import Constant, Expr, RejectedError, Var
from kernelyard_onnx.converters.branches import run_time_if
from kernelyard_onnx.converters.loops import Loop
from kernelyard_onnx.graph_builder import GraphBuilder
from kernelyard_onnx.node import Node
from kernelyard_onnx.outlined_graph import OutlinedGraph
from kernelyard_onnx.registry import converter
from kernelyard_onnx.values import Value

if TYPE_CHECKING:
    import onnx

# Unrolled code grows with every turn: loops beyond this stay loops.
MAX_TURNS = 64
MAX_UNROLLED_NODES = 4096


@converter("If")
def conditional(node: Node) -> Sequence[Value | None]:
    """The branch that is taken stands in place of the node, where the condition does not depend on data."""
    condition = node.builder.known.constant(node.input(0))
    if condition is None:
        try:
            return run_time_if(node, node.input(0))
        except RejectedError as error:
            if error.inputs or not str(error):
                raise
            node.undecided(str(error), node.input(0))
    taken = bool(condition.reshape(-1)[0])
    branch = node.required_attr("then_branch" if taken else "else_branch")
    return node.importer.run_subgraph(branch, node.scope, {})


@converter("Loop")
def loop(node: Node) -> Sequence[Value | None]:
    """Unrolled where few turns are certain when the model is compiled; else a loop of the program."""
    body: onnx.GraphProto = node.required_attr("body")
    limit, condition = node.optional(0), node.optional(1)
    unrolled = _unrolled(node, body, limit, condition)
    if unrolled is not None:
        return unrolled
    starts: list[Expr] = []
    for value in node.inputs[2:]:
        if not isinstance(value, Expr):
            node.undecided(
                "it carries something that is not a tensor", *(e for e in (limit, condition) if e is not None)
            )
        starts.append(value)
    goes_on = Constant(np.array(True)) if condition is None else condition

    def turn(params: Sequence[Var], number: Var, states: Sequence[Var]) -> OutlinedGraph:
        return node.importer.outline(body, node.scope, params, lambda _: [number, Constant(np.array(True)), *states])

    return Loop(node, limit, goes_on, starts, turn).run()


def _unrolled(
    node: Node, body: onnx.GraphProto, limit: Expr | None, condition: Expr | None
) -> Sequence[Value | None] | None:
    """The loop as so many copies of its body; None where data decides, or where they would be too many."""
    known = node.builder.known
    most = MAX_TURNS if limit is None else known.constant(limit)
    begins = np.array(True) if condition is None else known.constant(condition)
    if most is None or begins is None:
        return None
    turns = int(np.reshape(most, -1)[0])
    if turns > MAX_TURNS or turns * len(body.node) > MAX_UNROLLED_NODES:
        return None
    listed = len(node.importer.problems)
    goes_on: bool | None = bool(begins.reshape(-1)[0])
    carried: list[Value | None] = [node.value(index) for index in range(2, len(node.inputs))]
    stacks: list[list[Expr]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    turn = 0
    while goes_on and turn < turns:
        given = [Constant(np.int64(turn)), Constant(np.bool_(True)), *carried]
        results = _turn(node, body, given)
        more = known.constant(_tensor(node, results[0]))
        goes_on = None if more is None else bool(more.reshape(-1)[0])
        carried, scanned = list(results[1 : 1 + len(carried)]), results[1 + len(carried) :]
        for stack, value in zip(stacks, scanned, strict=True):
            stack.append(_tensor(node, value))
        turn += 1
    if (goes_on is None and turn < turns) or (goes_on and limit is None) or not all(stacks):
        del node.importer.problems[listed:]
        return None
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
    reverse = node.attr("scan_output_directions") or (0,) * outputs
    out_axes = node.attr("scan_output_axes") or (0,) * outputs
    turns = _length(node, scanned, in_axes)
    if not isinstance(turns, int) or turns > MAX_TURNS or turns * len(body.node) > MAX_UNROLLED_NODES:
        sources = list(zip(scanned, in_axes, backwards, strict=True))
        results = _run_time_scan(node, body, turns, states, sources)
        made = [
            _placed(node, stack, backward, axis)
            for stack, backward, axis in zip(results[len(states) :], reverse, out_axes, strict=True)
        ]
        return [*results[: len(states)], *made]
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
    made = []
    for stack, backward, axis in zip(stacks, reverse, out_axes, strict=True):
        rank = node.rank(stack[0]) + 1 if stack else 1
        made.append(_stacked(node, stack[::-1] if backward else stack, node.axis(axis, rank)))
    return [*states, *made]


@converter("Scan", since=8)
def scan_of_batches(node: Node) -> Sequence[Value | None]:
    """Before opset 9, over the second axis of each element of a batch; both sizes fixed, and all sequences whole."""
    body: onnx.GraphProto = node.required_attr("body")
    count = int(node.required_attr("num_scan_inputs"))
    if node.value(0) is not None:
        node.reject("it has sequence_lens")
    inputs = [node.input(index) for index in range(1, len(node.inputs))]
    number = len(inputs) - count
    batch = node.fixed(node.shape(inputs[0])[0], "size of its batch")
    turns = node.fixed(_length(node, inputs[number:], [1] * count), "length of its sequences")
    if batch * turns * len(body.node) > MAX_UNROLLED_NODES:
        node.reject("it takes too many turns")
    backwards = node.attr("directions") or (0,) * count
    made: list[list[Expr]] = [[] for _ in body.output]
    for element in range(batch):
        states: list[Value | None] = [_at(node, x, 0, element) for x in inputs[:number]]
        rows = [_at(node, x, 0, element) for x in inputs[number:]]
        stacks: list[list[Expr]] = [[] for _ in range(len(body.output) - number)]
        for turn in range(turns):
            given = [_at(node, x, 0, turns - 1 - turn if b else turn) for x, b in zip(rows, backwards, strict=True)]
            results = _turn(node, body, [*states, *given])
            states = list(results[:number])
            for stack, value in zip(stacks, results[number:], strict=True):
                stack.append(_tensor(node, value))
        for items, value in zip(made, (*states, *(_stacked(node, stack, 0) for stack in stacks)), strict=True):
            items.append(_tensor(node, value))
    return [_stacked(node, items, 0) for items in made]


def _run_time_scan(
    node: Node,
    body: onnx.GraphProto,
    turns: Dim,
    states: Sequence[Value | None],
    sources: Sequence[tuple[Expr, int, int]],
) -> list[Expr]:
    def turn(params: Sequence[Var], number: Var, states: Sequence[Var]) -> OutlinedGraph:
        def inputs(builder: GraphBuilder) -> Sequence[Value | None]:
            last = builder.op("reshape", builder.op("shape_tensor", dims=(turns - 1,)), shape=())
            at = {0: number, 1: builder.op("subtract", last, number)}
            return [*states, *(builder.op("take", x, at[int(back)], axis=axis) for x, axis, back in sources)]

        graph = node.importer.outline(body, node.scope, params, inputs)
        return OutlinedGraph(graph.builder, graph.params, [Constant(np.array(True)), *graph.results])

    starts = [_tensor(node, state) for state in states]
    return Loop(node, node.expr(turns, "int64"), Constant(np.array(True)), starts, turn).run()


def _placed(node: Node, stack: Expr, backward: int, axis: int) -> Expr:
    """What a scan stacked along the first axis, the other way round and along another axis where that is asked for."""
    turned = node.op("flip", stack, axes=(0,)) if backward else stack
    rank = node.rank(stack)
    to = node.axis(axis, rank)
    return node.permute(turned, [*range(1, to + 1), 0, *range(to + 1, rank)])


def _length(node: Node, scanned: Sequence[Expr], axes: Sequence[int]) -> Dim:
    return node.shape(scanned[0])[axes[0]] if scanned else node.reject("it scans over nothing")


def _at(node: Node, x: Expr, axis: int, index: int) -> Expr:
    part = node.slice(x, axis, index, index + 1)
    shape = node.shape(part)
    return node.reshape(part, (*shape[:axis], *shape[axis + 1 :]))
