"""Finds where all patterns of a `PatternContext` match at once, with the edges that it demands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kernelyard.ir.expr import Constant, Expr, Function, Var, operands
from kernelyard.ir.module import IRModule
from kernelyard.patterns.language.pattern import CallPattern, FunctionCallPattern, Pattern, WrapperPattern
from kernelyard.patterns.language.pattern_context import Edge, PatternContext
from kernelyard.patterns.language.pattern_parts import children, walk
from kernelyard.patterns.matching.dataflow import Dataflow
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.matching.matcher import Matcher, Search


def graph_matches(
    context: PatternContext, source: Dataflow | Function, module: IRModule | None = None
) -> Iterator[Match]:
    """Return every place where the patterns of `context` match, in order of the function's bindings.

    The root of each match is its last value. Different orders of equal patterns give different matches.
    """
    return _GraphSearch(context, Matcher(source, module)).matches()


def match_graph(context: PatternContext, source: Dataflow | Function) -> Mapping[Pattern, Expr] | None:
    """Return the value of each pattern in the first place where all of `context` match, None where there is none."""
    found = next(graph_matches(context, source), None)
    return None if found is None else found.values


class _GraphSearch:
    """One search after another, each in what the ones before have left free."""

    def __init__(self, context: PatternContext, matcher: Matcher) -> None:
        self.edges = tuple(context.edges)
        self.roots = _roots(context)
        self.dataflow = matcher.dataflow
        self.search = Search(matcher.feasibility, distinct=True)

    def matches(self) -> Iterator[Match]:
        position = self.dataflow.position
        for _ in self._solve(self.roots):
            bound = [expr for expr in self.search.bound.values() if isinstance(expr, Var) and expr in position]
            last = max(bound, key=lambda var: position[var], default=None)
            if last is not None and self.search.shapes_agree():
                yield self.search.result(last)

    def _solve(self, roots: tuple[Pattern, ...]) -> Iterator[None]:
        if not roots:
            yield
            return
        root, candidates = self._next(roots)
        rest = tuple(pattern for pattern in roots if pattern is not root)
        for candidate in candidates:
            for _ in self.search.solve(root, candidate):
                if self._edges_hold():
                    yield from self._solve(rest)

    def _next(self, roots: tuple[Pattern, ...]) -> tuple[Pattern, tuple[Expr, ...]]:
        """Return the pattern to place next: one that hangs on what is placed already, else the first."""
        for root in roots:
            near = self._near(root)
            if near is not None:
                return root, near
        return roots[0], self._anywhere(roots[0])

    def _anywhere(self, root: Pattern) -> tuple[Expr, ...]:
        values: dict[Expr, None] = {}
        for binding in self.dataflow.bindings:
            if _is_leaf(root):
                values.update(dict.fromkeys(self._operands(binding.var)))
            values.setdefault(binding.var)
        return tuple(values)

    def _near(self, root: Pattern) -> tuple[Expr, ...] | None:
        """Return the candidates of a pattern next to those already matched; None if there is no such neighbour."""
        bound = self.search.bound
        for part in walk(root):
            if part in bound and (part is root or _same_value_as(part, root)):
                return (bound[part],)
        for edge in self.edges:
            if edge.consumer is root and edge.producer in bound:
                return self._users(bound[edge.producer])
            if edge.producer is root and edge.consumer in bound:
                return self._operands(bound[edge.consumer])
        return self._readers(root)

    def _users(self, expr: Expr) -> tuple[Expr, ...]:
        return self.dataflow.users(expr) if isinstance(expr, Var) else ()

    def _readers(self, root: Pattern) -> tuple[Expr, ...] | None:
        """Return the fewest values that read an operand of `root` that is already bound; None when none is."""
        bound = self.search.bound
        placed = [bound[operand] for operand in _operand_patterns(root) if isinstance(bound.get(operand), Var)]
        return min(map(self._users, placed), key=len, default=None)

    def _operands(self, expr: Expr) -> tuple[Expr, ...]:
        value = self.dataflow.value_of(expr)
        read = () if value is expr else operands(value)
        return tuple(dict.fromkeys(self.dataflow.resolve(o) for o in read if isinstance(o, (Var, Constant))))

    def _edges_hold(self) -> bool:
        bound = self.search.bound
        return all(
            self._holds(edge, bound[edge.producer], bound[edge.consumer])
            for edge in self.edges
            if edge.producer in bound and edge.consumer in bound
        )

    def _holds(self, edge: Edge, producer: Expr, consumer: Expr) -> bool:
        if edge.index is None:
            is_read = producer in self._operands(consumer)
        else:
            read = operands(self.dataflow.value_of(consumer))
            is_read = edge.index < len(read) and self.dataflow.resolve(read[edge.index]) is producer
        if not is_read or not edge.only:
            return is_read
        if not isinstance(producer, Var) or self.dataflow.is_returned(producer):
            return False
        return self.dataflow.users(producer) == (consumer,)


def _roots(context: PatternContext) -> tuple[Pattern, ...]:
    """Return the patterns that are not part of another, in the order of their creation.

    What is free (a wildcard, say) says something only where an edge names it.
    """
    parts = {part for pattern in context.patterns for child in children(pattern) for part in walk(child)}
    ends = {end for edge in context.edges for end in (edge.producer, edge.consumer)}
    alone = [pattern for pattern in context.patterns if pattern not in parts]
    return tuple(pattern for pattern in alone if pattern in ends or not _is_leaf(pattern))


def _is_leaf(pattern: Pattern) -> bool:
    return not children(pattern) and not isinstance(pattern, CallPattern)


def _same_value_as(part: Pattern, root: Pattern) -> bool:
    """Return True when `part` is what `root` only adds a constraint or a name to."""
    while part is not root and isinstance(root, WrapperPattern):
        root = root.pattern
    return part is root


def _operand_patterns(root: Pattern) -> Iterable[Pattern]:
    while isinstance(root, WrapperPattern):
        root = root.pattern
    if not isinstance(root, (CallPattern, FunctionCallPattern)):
        return ()
    return [part for arg in root.args for part in walk(arg) if _same_value_as(part, arg)]
