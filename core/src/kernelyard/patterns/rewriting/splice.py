"""Puts new values in the place of old ones and brings the bindings into an order in which they can run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from kernelyard.ir.expr import Binding, Call, Expr, Function, Tuple, TupleGetItem, Var, operands, with_operands
from kernelyard.ir.purity import Purity
from kernelyard.patterns.matching.dataflow import Dataflow, remove_aliases

Emit: TypeAlias = Callable[[Expr], Var]


def flatten(value: Expr, emit: Emit, known: dict[Expr, Expr] | None = None) -> Expr:
    """Flatten `value` to variables and constants: operands that are calls themselves are emitted in front, each once.

    known: what has been emitted already, for values that share parts.
    """
    known = {} if known is None else known
    old = operands(value) if isinstance(value, (Call, Tuple, TupleGetItem)) else ()
    new = [_atom(operand, emit, known) for operand in old]
    return value if all(a is b for a, b in zip(old, new, strict=True)) else with_operands(value, new)


def _atom(operand: Expr, emit: Emit, known: dict[Expr, Expr]) -> Expr:
    if not isinstance(operand, (Call, Tuple, TupleGetItem)):
        return operand
    if operand not in known:
        known[operand] = emit(flatten(operand, emit, known))
    return known[operand]


def splice(function: Function, replaced: Mapping[Var, Sequence[Binding]], purity: Purity) -> Function | None:
    """Return the function with bindings put in the place of those of some variables.

    None when the new bindings depend on one another in a circle.
    """
    bindings = [new for old in function.bindings for new in replaced.get(old.var, [old])]
    ordered = _sort_bindings(bindings, purity)
    if ordered is None:
        return None
    return remove_aliases(Function(function.params, ordered, function.result, function.attrs))


def remove_dead(function: Function, candidates: Collection[Var]) -> Function:
    """Return the function without those of `candidates` that nothing uses any more."""
    dataflow = Dataflow(function.bindings, function.result)
    dead: set[Var] = set()
    for binding in reversed(function.bindings):
        var = binding.var
        if var in candidates and not dataflow.is_returned(var) and all(user in dead for user in dataflow.users(var)):
            dead.add(var)
    kept = [binding for binding in function.bindings if binding.var not in dead]
    return Function(function.params, kept, function.result, function.attrs)


def _sort_bindings(bindings: Sequence[Binding], purity: Purity) -> list[Binding] | None:
    """Return the bindings, each after those that it reads; otherwise, and where effects count, as given."""
    before = _producers(bindings, purity)
    if all(max(producers, default=-1) < i for i, producers in enumerate(before)):
        return list(bindings)
    order = _topological_order(before)
    return [bindings[i] for i in order] if len(order) == len(bindings) else None


def _producers(bindings: Sequence[Binding], purity: Purity) -> list[set[int]]:
    """Return for each binding the numbers of those that must come before it."""
    number = {binding.var: i for i, binding in enumerate(bindings)}
    before = [{number[o] for o in operands(b.value) if isinstance(o, Var) and o in number} for b in bindings]
    effects = [i for i, binding in enumerate(bindings) if not purity.is_pure(binding.value)]
    for first, second in pairwise(effects):
        before[second].add(first)
    return before


def _topological_order(before: Sequence[set[int]]) -> list[int]:
    """Return numbers, each after those `before` it and the lowest first (Kahn); what is in a circle is left out."""
    readers: list[list[int]] = [[] for _ in before]
    for i, producers in enumerate(before):
        for producer in producers:
            readers[producer].append(i)
    waiting = [len(producers) for producers in before]
    ready = [i for i, count in enumerate(waiting) if not count]
    heapify(ready)
    ordered: list[int] = []
    while ready:
        i = heappop(ready)
        ordered.append(i)
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    return ordered
