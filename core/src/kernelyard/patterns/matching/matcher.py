"""Finds where a pattern matches: backtracking search over one function's dataflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType
from typing import TypeAlias

from kernelyard.errors import PatternError
from kernelyard.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
)
from kernelyard.ir.module import IRModule
from kernelyard.ir.types import TensorType
from kernelyard.patterns.language.pattern import (
    AndPattern,
    AttrPattern,
    CallPattern,
    CapturePattern,
    DtypePattern,
    FunctionCallPattern,
    FunctionPattern,
    NotPattern,
    OptionalPattern,
    OrPattern,
    Pattern,
    PredicatePattern,
    SameShapePattern,
    ShapePattern,
    TupleGetItemPattern,
    TuplePattern,
    TypePattern,
)
from kernelyard.patterns.matching.dataflow import Dataflow
from kernelyard.patterns.matching.feasibility import Feasibility, is_same_value
from kernelyard.patterns.matching.match_result import Match

Source: TypeAlias = "Dataflow | Function | Mapping[Var, Expr]"


class Matcher:
    """Matches patterns against one function; what it learns about one match helps with the next.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.patterns import is_op, wildcard
        >>> b = FunctionBuilder()
        >>> y = b.op("nn.relu", b.input("x", (2, 2)))
        >>> matcher = Matcher(b.function(y))
        >>> matcher.match(is_op("nn.relu")(wildcard().capture("x")), y).captures
        mappingproxy({'x': %x})
    """

    def __init__(self, source: Source, module: IRModule | None = None) -> None:
        """Create a matcher. module: where patterns of functions look for what a GlobalVar names."""
        self.dataflow = Dataflow.of(source)
        self.feasibility = Feasibility(self.dataflow, module.functions if module else {})

    def match(self, pattern: Pattern, expr: Expr) -> Match | None:
        """Return the best way in which `pattern` matches `expr`, or None."""
        return next(self.matches(pattern, expr), None)

    def matches(self, pattern: Pattern, expr: Expr) -> Iterator[Match]:
        """Yield every way in which `pattern` matches `expr`, best first: left alternatives and given operand order
        first.

        expr: a Var, or a value bound in the function. Different alternatives may give equal matches.
        """
        root = self.dataflow.resolve(_variable_of(expr, self.dataflow))
        if not isinstance(root, Var) or not self.feasibility.may_match(pattern, root):
            return
        search = Search(self.feasibility)
        for _ in search.solve(pattern, root):
            if search.shapes_agree():
                yield search.result(root)


def match(pattern: Pattern, expr: Expr, bindings: Source) -> Match | None:
    """Return the best way in which `pattern` matches `expr`, or None; see `Matcher`, which is faster for many."""
    return Matcher(bindings).match(pattern, expr)


def extract(pattern: Pattern, expr: Expr, bindings: Source) -> Mapping[Pattern, Expr] | None:
    """Return the value of each part of `pattern` in its best match of `expr`, or None."""
    found = match(pattern, expr, bindings)
    return None if found is None else found.values


def matches(pattern: Pattern, expr: Expr, bindings: Source) -> Iterator[Match]:
    """Return every way in which `pattern` matches `expr`, best first; see `Matcher`."""
    return Matcher(bindings).matches(pattern, expr)


def matches_function(pattern: Pattern, function: Function, module: IRModule | None = None) -> bool:
    """Return True when a function's parameters and result are as `is_function` says."""
    feasibility = Feasibility(Dataflow.of(function), module.functions if module else {})
    return isinstance(pattern, FunctionPattern) and _function_fits(pattern, function, feasibility)


def _function_fits(pattern: FunctionPattern, function: Function, feasibility: Feasibility) -> bool:
    if len(pattern.params) != len(function.params):
        return False
    search = Search(feasibility)
    patterns, exprs = (*pattern.params, pattern.result), (*function.params, function.result)
    return any(search.shapes_agree() for _ in search.solve_all(patterns, exprs))


def _variable_of(expr: Expr, dataflow: Dataflow) -> Expr:
    if isinstance(expr, (Var, Constant)):
        return expr
    bound = next((var for var, value in dataflow.values.items() if value is expr), None)
    if bound is None:
        raise PatternError("this value is not bound in the function given", found=type(expr).__name__)
    return bound


class Search:
    """State of one search. Each solver is a generator that yields once per way to match, with the state set
    accordingly, and takes its changes back before it goes on: plain backtracking. What `Feasibility` has tested is
    not tested again."""

    def __init__(self, feasibility: Feasibility, distinct: bool = False) -> None:
        """distinct: different operators of the pattern stand for different values."""
        self.dataflow = feasibility.dataflow
        self.feasibility = feasibility
        self.distinct = distinct
        self.bound: dict[Pattern, Expr] = {}
        self.captures: dict[str, Expr] = {}
        self.members: dict[Var, int] = {}

    def result(self, root: Var) -> Match:
        position = self.dataflow.position
        ordered = sorted(self.members, key=lambda var: position[var])
        bindings = tuple(self.dataflow.bindings[position[var]] for var in ordered)
        captures, values = MappingProxyType(dict(self.captures)), MappingProxyType(dict(self.bound))
        return Match(root, captures, bindings, self.dataflow, values, self.feasibility.functions)

    def shapes_agree(self) -> bool:
        """Return True when the values bound have the shapes of others that `same_shape_as` demands."""
        constraints = [pattern for pattern in self.bound if isinstance(pattern, SameShapePattern)]
        return all(self._same_shape(pattern, other) for pattern in constraints for other in pattern.others)

    def _same_shape(self, pattern: Pattern, other: Pattern) -> bool:
        if other not in self.bound:
            return False
        left, right = self.bound[pattern].type, self.bound[other].type
        return isinstance(left, TensorType) and isinstance(right, TensorType) and left.shape == right.shape

    def solve(self, pattern: Pattern, expr: Expr) -> Iterator[None]:
        expr = self.dataflow.resolve(expr)
        bound = self.bound.get(pattern)
        if bound is not None:
            if is_same_value(bound, expr):
                yield
            return
        if not self.feasibility.may_match(pattern, expr):
            return
        self.bound[pattern] = expr
        solver = _SOLVERS.get(type(pattern))
        if solver is None:  # a pattern without parts
            yield
        else:
            yield from solver(self, pattern, expr)
        del self.bound[pattern]

    def either(self, pattern: OrPattern, expr: Expr) -> Iterator[None]:
        yield from self.solve(pattern.left, expr)
        yield from self.solve(pattern.right, expr)

    def both(self, pattern: AndPattern, expr: Expr) -> Iterator[None]:
        for _ in self.solve(pattern.left, expr):
            yield from self.solve(pattern.right, expr)

    def negation(self, pattern: NotPattern, expr: Expr) -> Iterator[None]:
        # The whole search is run, so that it takes back what it bound.
        if not sum(1 for _ in self.solve(pattern.pattern, expr)):
            yield

    def call(self, pattern: CallPattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        assert isinstance(value, Call)
        for way in self.feasibility.ways(pattern, value):
            if way.inner is None:
                yield from self._group(expr, way.patterns, way.operands)
            elif not self.distinct:  # in a graph, edges may name the inner call
                inner = self.dataflow.resolve(way.inner)
                assert isinstance(inner, Var)
                self._join(inner)
                yield from self._group(expr, way.patterns, way.operands)
                self._leave(inner)

    def tuple(self, pattern: TuplePattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        assert isinstance(value, Tuple)
        for fields in permutations(value.fields) if pattern.unordered else (value.fields,):
            yield from self._group(expr, pattern.fields, fields)

    def function(self, pattern: FunctionPattern, expr: Expr) -> Iterator[None]:
        assert isinstance(expr, GlobalVar)
        function = self.feasibility.functions[expr.name]
        assert isinstance(function, Function)
        if _function_fits(pattern, function, Feasibility(Dataflow.of(function), self.feasibility.functions)):
            yield

    def function_call(self, pattern: FunctionCallPattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        assert isinstance(value, Call)
        assert isinstance(value.op, GlobalVar)
        args = value.args[: len(pattern.args)]
        yield from self._group(expr, (pattern.callee, *pattern.args), (value.op, *args))

    def tuple_get_item(self, pattern: TupleGetItemPattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        assert isinstance(value, TupleGetItem)
        yield from self._group(expr, (pattern.tuple_value,), (value.tuple_value,))

    def _group(self, expr: Expr, patterns: Sequence[Pattern], exprs: Sequence[Expr]) -> Iterator[None]:
        if not isinstance(expr, Var):  # a tuple that a function returns
            yield from self.solve_all(patterns, exprs)
            return
        if self.distinct and expr in self.members:
            return
        self._join(expr)
        yield from self.solve_all(patterns, exprs)
        self._leave(expr)

    def _join(self, var: Var) -> None:
        self.members[var] = self.members.get(var, 0) + 1

    def _leave(self, var: Var) -> None:
        self.members[var] -= 1
        if not self.members[var]:
            del self.members[var]

    def solve_all(self, patterns: Sequence[Pattern], exprs: Sequence[Expr], start: int = 0) -> Iterator[None]:
        """Yield all patterns from number `start` on, each on its operand."""
        if start == len(patterns):
            yield
        elif start == len(patterns) - 1:
            yield from self.solve(patterns[start], exprs[start])
        else:
            for _ in self.solve(patterns[start], exprs[start]):
                yield from self.solve_all(patterns, exprs, start + 1)

    def inner(
        self, pattern: AttrPattern | DtypePattern | ShapePattern | TypePattern | SameShapePattern, expr: Expr
    ) -> Iterator[None]:
        yield from self.solve(pattern.pattern, expr)

    def predicate(self, pattern: PredicatePattern, expr: Expr) -> Iterator[None]:
        for _ in self.solve(pattern.pattern, expr):
            if pattern.predicate(expr):
                yield

    def capture(self, pattern: CapturePattern, expr: Expr) -> Iterator[None]:
        for _ in self.solve(pattern.pattern, expr):
            before = self.captures.get(pattern.name)
            self.captures[pattern.name] = expr
            yield
            if before is None:
                del self.captures[pattern.name]
            else:
                self.captures[pattern.name] = before


_SOLVERS: dict[type[Pattern], Callable[[Search, Pattern, Expr], Iterator[None]]] = {  # pyright: ignore[reportAssignmentType]
    FunctionPattern: Search.function,
    OrPattern: Search.either,
    OptionalPattern: Search.either,
    AndPattern: Search.both,
    NotPattern: Search.negation,
    CallPattern: Search.call,
    FunctionCallPattern: Search.function_call,
    TuplePattern: Search.tuple,
    TupleGetItemPattern: Search.tuple_get_item,
    AttrPattern: Search.inner,
    DtypePattern: Search.inner,
    ShapePattern: Search.inner,
    TypePattern: Search.inner,
    SameShapePattern: Search.inner,
    PredicatePattern: Search.predicate,
    CapturePattern: Search.capture,
}
