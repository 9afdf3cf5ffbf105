"""Loops whose number of iterations depends on data: the body becomes a function, and the program repeats it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dims import symbols_of as symbols_of_dim
from kernelyard.plugins.api import (
    PRIVATE,
    Constant,
    Expr,
    Function,
    FunctionBuilder,
    RejectedError,
    TensorType,
    TupleType,
    Type,
    Var,
    symbols_of,
)
from kernelyard_onnx.bounds import at_least
from kernelyard_onnx.converters.loop_invariants import hoist_invariants
from kernelyard_onnx.node import Node
from kernelyard_onnx.outlined_graph import OutlinedGraph

COUNT, FLAG = TensorType((), "int64"), TensorType((), "bool")
MAX_ROUNDS = 8

Body = Callable[[Sequence[Var], Var, Sequence[Expr]], OutlinedGraph]
"""`body(params, turn, states)`: a function body with those parameters, the iteration index and the states among them.
Its results are the condition to continue, the next states, and the scan outputs."""


class ChangedTypeError(RejectedError):
    """An iteration changes the rank or the element type of what a loop carries. Never leaves the importer."""


@dataclass
class Loop:
    """One loop of a program.

    limit: the most iterations, or None. goes_on: whether to begin. starts: the states before the first iteration.
    first: the index of that iteration; those before it stand in front of the loop.
    """

    node: Node
    limit: Expr | None
    goes_on: Expr
    starts: Sequence[Expr]
    body: Body
    first: int = 0
    _opened: set[Dim] = field(default_factory=set, init=False)

    def run(self) -> list[Expr]:
        """Return the states after the last iteration, then the scan outputs, each stacked along a new first axis.

        States that no iteration changes are not carried: the body reads them from around it, weights as constants.

        Raises: RejectedError when the types of the states never settle; ChangedTypeError when more than sizes differ.
        """
        listed = len(self.node.importer.problems)
        graph, header, states = self._build_invariant_body()
        unchanged = {i for i, state in enumerate(states) if graph.results[1 + i] is state}
        if unchanged:
            del self.node.importer.problems[listed:]
            return self._run_without(unchanged)
        hoist_invariants(graph, self.node.builder)
        items = graph.results[1 + len(states) :]
        captured = graph.list_captured()
        outside = symbols_of(value.type for value in (*captured, *self.starts))
        turns = self._turns(graph, header[1])
        stacks = [self._stack_type(item, turns, outside) for item in items]
        b = graph.builder
        after: list[Expr] = [b.op("add", header[0], 1), b.op("reshape", graph.results[0], shape=()), *header[2:]]
        after += [*graph.results[1 : 1 + len(states)], *captured, *items]
        importer, label = self.node.importer, self.node.label
        body = importer.add_private(f"{label}_body", graph.function(captured, after))
        types = [var.type for var in (*header, *states, *captured)]
        condition = importer.add_private(f"{label}_condition", self._condition(types))
        before: list[Expr] = [Constant(np.array(self.first)), self.node.reshape(self.goes_on, ())]
        before += [*self._limits(), *self.starts]
        outer = self.node.builder
        result = outer.while_(condition, body, [*before, *captured], TupleType((*types, *stacks)), len(stacks))
        results = [outer.get(result, index) for index in range(len(types) + len(stacks))]
        return [*results[len(header) : len(header) + len(states)], *results[len(types) :]]

    def _run_without(self, unchanged: set[int]) -> list[Expr]:
        """`run`, with some states as what they are before the loop."""
        count = len(self.starts)
        changed = [i for i in range(count) if i not in unchanged]

        def body(params: Sequence[Var], turn: Var, states: Sequence[Expr]) -> OutlinedGraph:
            every = {**dict(enumerate(self.starts)), **dict(zip(changed, states, strict=True))}
            graph = self.body(params, turn, [every[i] for i in range(count)])
            goes_on, *results = graph.results
            return replace(graph, results=[goes_on, *(results[i] for i in changed), *results[count:]])

        results = replace(self, starts=[self.starts[i] for i in changed], body=body).run()
        after = {**dict(enumerate(self.starts)), **dict(zip(changed, results, strict=False))}
        return [*(after[i] for i in range(count)), *results[len(changed) :]]

    def is_entered(self) -> bool:
        """Tell if at least one iteration is certain."""
        known = self.node.builder.known
        limit = np.array(1) if self.limit is None else known.constant(self.limit)
        return limit is not None and int(limit.reshape(-1)[0]) > 0 and _is_true(known.constant(self.goes_on))

    def _limits(self) -> list[Expr]:
        return [] if self.limit is None else [self.node.cast(self.node.reshape(self.limit, ()), "int64")]

    def _build_invariant_body(self) -> tuple[OutlinedGraph, list[Var], list[Var]]:
        """Return the body, over states whose types are loop-invariant: sizes that an iteration changes are dynamic."""
        types = [start.tensor_type for start in self.starts]
        problems = self.node.importer.problems
        listed = len(problems)
        for _ in range(MAX_ROUNDS):
            header = [Var("turn", COUNT), Var("goes_on", FLAG), *(Var("limit", COUNT) for _ in self._limits())]
            states = [Var(f"state_{i}", type_) for i, type_ in enumerate(types)]
            graph = self.body([*header, *states], header[0], states)
            given = [result.tensor_type for result in graph.results[1 : 1 + len(types)]]
            wider = [self._wider(old, new) for old, new in zip(types, given, strict=True)]
            if wider == types:
                return graph, header, states
            del problems[listed:]
            types = wider
        return self.node.reject("the types of its loop-carried values do not converge")

    def _wider(self, old: TensorType, new: TensorType) -> TensorType:
        if old.dtype != new.dtype or old.rank != new.rank:
            raise ChangedTypeError(f"a loop-carried value is {old!r} before an iteration, and {new!r} after it")
        return TensorType(tuple(map(self._wider_size, old.shape, new.shape)), old.dtype)

    def _wider_size(self, old: Dim, new: Dim) -> Dim:
        if old == new or old in self._opened:
            return old
        opened = self.node.new_size()
        self._opened.add(opened)
        return opened

    def _turns(self, graph: OutlinedGraph, goes_on: Var) -> Dim | None:
        """Return the number of iterations where the limit alone ends the loop, and sizes tell it; else None."""
        known = self.node.builder.known
        limit = None if self.limit is None else known.dims(self.limit)
        next_goes_on = graph.results[0]
        is_counted = next_goes_on is goes_on or _is_true(graph.builder.known.constant(next_goes_on))
        if limit is None or not is_counted or not _is_true(known.constant(self.goes_on)):
            return None
        return limit[0] - self.first if at_least(limit[0], self.first) else dims.maximum(limit[0] - self.first, 0)

    def _stack_type(self, item: Expr, turns: Dim | None, outside: frozenset[str]) -> TensorType:
        """Return the type of a scan output; sizes that only the body knows become known after the loop."""
        shape = [dim if symbols_of_dim(dim) <= outside else self.node.new_size() for dim in item.tensor_type.shape]
        return TensorType((self.node.new_size() if turns is None else turns, *shape), item.tensor_type.dtype)

    def _condition(self, types: Sequence[Type]) -> Function:
        b = FunctionBuilder()
        turn, goes_on, *rest = [b.parameter(type_) for type_ in types]
        holds = b.op("logical_and", goes_on, b.op("less", turn, rest[0])) if self.limit is not None else goes_on
        return b.function(holds, attrs={PRIVATE: True})


def _is_true(value: np.ndarray | None) -> bool:
    return value is not None and bool(value.reshape(-1)[0])
