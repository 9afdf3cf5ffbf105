"""Finds where a pattern matches: backtracking search over one function's dataflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from kernelyard.errors import PatternError
from kernelyard.ir.expr import Binding, Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, operands
from kernelyard.patterns.dataflow import Dataflow
from kernelyard.patterns.feasibility import Feasibility, operand_orders, same_value
from kernelyard.patterns.pattern import (
    AndPattern,
    AttrPattern,
    CallPattern,
    CapturePattern,
    ConstantPattern,
    DtypePattern,
    NotPattern,
    OptionalPattern,
    OrPattern,
    Pattern,
    PredicatePattern,
    ShapePattern,
    TupleGetItemPattern,
    TuplePattern,
    VarPattern,
    WildcardPattern,
)


@dataclass(frozen=True, eq=False)
class Match:
    """A place where a pattern matches.

    root: the variable bound to the last value of the group. captures: captured operands (Var or Constant) by name;
    names of alternatives not taken are absent. bindings: what moves into the group (calls, tuples and their items
    that the pattern spells out; wildcards and constants stay outside), in order.
    """

    root: Var
    captures: Mapping[str, Expr]
    bindings: tuple[Binding, ...]
    dataflow: Dataflow

    @property
    def call(self) -> Call:
        """The root's call.

        Raises: PatternError when the root is a tuple or a tuple's item.
        """
        value = self.value_of(self.root)
        if not isinstance(value, Call):
            raise PatternError("the root of this match is no call", where=repr(self.root), found=type(value).__name__)
        return value

    def __getitem__(self, name: str) -> Expr:
        """The captured operand of that name."""
        return self.captures[name]

    def __contains__(self, name: object) -> bool:
        return name in self.captures

    def get(self, name: str) -> Expr | None:
        """The captured operand of that name, None when it took no part in this match."""
        return self.captures.get(name)

    def call_of(self, name: str) -> Call:
        """The call that a captured variable is bound to.

        Raises: PatternError when the capture is missing or is no call.
        """
        if name not in self.captures:
            raise PatternError(f"nothing was captured as {name!r}", expected=", ".join(self.captures))
        value = self.value_of(self.captures[name])
        if not isinstance(value, Call):
            raise PatternError(f"what was captured as {name!r} is no call", found=type(value).__name__)
        return value

    def value_of(self, expr: Expr) -> Expr:
        """What an operand is bound to; parameters and constants are returned as they stand."""
        return self.dataflow.value_of(expr)

    def users(self, var: Var) -> tuple[Var, ...]:
        """Variables whose values read `var`, in the whole function."""
        return self.dataflow.users(var)

    @cached_property
    def members(self) -> frozenset[Var]:
        """The variables that move into the group, the root included."""
        return frozenset(self.members_in_order)

    @cached_property
    def members_in_order(self) -> tuple[Var, ...]:
        """The variables that move into the group, in order; the root is the last."""
        return tuple(binding.var for binding in self.bindings)

    @cached_property
    def call_bindings(self) -> tuple[Binding, ...]:
        """The bindings of calls that move into the group, in order."""
        return tuple(binding for binding in self.bindings if isinstance(binding.value, Call))

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The calls that move into the group, in order."""
        return tuple(binding.value for binding in self.bindings if isinstance(binding.value, Call))

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops that move into the group, in order."""
        return tuple(call.op_name for call in self.calls)

    @cached_property
    def inputs(self) -> tuple[Expr, ...]:
        """Operands that the group reads from outside (Var or Constant), in order of first use."""
        found: dict[Expr, None] = {}
        for binding in self.bindings:
            for operand in operands(binding.value):
                resolved = self.dataflow.resolve(operand)
                if resolved not in self.members and isinstance(resolved, (Var, Constant)):
                    found.setdefault(resolved)
        return tuple(found)


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

    def __init__(self, source: Dataflow | Function | Mapping[Var, Expr]) -> None:
        self.dataflow = Dataflow.of(source)
        self._feasibility = Feasibility(self.dataflow)

    def match(self, pattern: Pattern, expr: Expr) -> Match | None:
        """The best way in which `pattern` matches `expr`, or None."""
        return next(self.matches(pattern, expr), None)

    def matches(self, pattern: Pattern, expr: Expr) -> Iterator[Match]:
        """Every way in which `pattern` matches `expr`, best first: left alternatives and given operand order first.

        expr: a Var, or a value bound in the function. Different alternatives may give equal matches.
        """
        root = self.dataflow.resolve(_variable_of(expr, self.dataflow))
        if not isinstance(root, Var) or not self._feasibility.may_match(pattern, root):
            return
        search = _Search(self.dataflow, self._feasibility)
        for _ in search.solve(pattern, root):
            yield search.result(root)


def match(pattern: Pattern, expr: Expr, bindings: Dataflow | Function | Mapping[Var, Expr]) -> Match | None:
    """The best way in which `pattern` matches `expr`, or None; see `Matcher`, which is faster for many."""
    return Matcher(bindings).match(pattern, expr)


def matches(pattern: Pattern, expr: Expr, bindings: Dataflow | Function | Mapping[Var, Expr]) -> Iterator[Match]:
    """Every way in which `pattern` matches `expr`, best first; see `Matcher`."""
    return Matcher(bindings).matches(pattern, expr)


def _variable_of(expr: Expr, dataflow: Dataflow) -> Expr:
    if isinstance(expr, (Var, Constant)):
        return expr
    bound = next((var for var, value in dataflow.values.items() if value is expr), None)
    if bound is None:
        raise PatternError("this value is not bound in the function given", found=type(expr).__name__)
    return bound


class _Search:
    """State of one search. Each solver is a generator that yields once per way to match, with the state set
    accordingly, and takes its changes back before it goes on: plain backtracking. What `Feasibility` has tested is
    not tested again."""

    def __init__(self, dataflow: Dataflow, feasibility: Feasibility) -> None:
        self.dataflow = dataflow
        self.feasibility = feasibility
        self.bound: dict[Pattern, Expr] = {}
        self.captures: dict[str, Expr] = {}
        self.members: dict[Var, int] = {}

    def result(self, root: Var) -> Match:
        position = self.dataflow.position
        ordered = sorted(self.members, key=lambda var: position[var])
        bindings = tuple(self.dataflow.bindings[position[var]] for var in ordered)
        return Match(root, MappingProxyType(dict(self.captures)), bindings, self.dataflow)

    def solve(self, pattern: Pattern, expr: Expr) -> Iterator[None]:
        expr = self.dataflow.resolve(expr)
        if pattern in self.bound:
            if same_value(self.bound[pattern], expr):
                yield
        elif self.feasibility.may_match(pattern, expr):
            self.bound[pattern] = expr
            yield from _SOLVERS[type(pattern)](self, pattern, expr)
            del self.bound[pattern]

    def leaf(self, pattern: Pattern, expr: Expr) -> Iterator[None]:
        yield

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
        for operands_ in operand_orders(value, len(pattern.args)):
            yield from self._group(expr, pattern.args, operands_)

    def tuple(self, pattern: TuplePattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        assert isinstance(value, Tuple)
        yield from self._group(expr, pattern.fields, value.fields)

    def tuple_get_item(self, pattern: TupleGetItemPattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        assert isinstance(value, TupleGetItem)
        yield from self._group(expr, (pattern.tuple_value,), (value.tuple_value,))

    def _group(self, expr: Expr, patterns: tuple[Pattern, ...], exprs: tuple[Expr, ...]) -> Iterator[None]:
        assert isinstance(expr, Var)
        self.members[expr] = self.members.get(expr, 0) + 1
        yield from self._all(patterns, exprs)
        self.members[expr] -= 1
        if not self.members[expr]:
            del self.members[expr]

    def _all(self, patterns: tuple[Pattern, ...], exprs: tuple[Expr, ...]) -> Iterator[None]:
        if not patterns:
            yield
            return
        for _ in self.solve(patterns[0], exprs[0]):
            yield from self._all(patterns[1:], exprs[1:])

    def inner(self, pattern: AttrPattern | DtypePattern | ShapePattern, expr: Expr) -> Iterator[None]:
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


_SOLVERS: dict[type[Pattern], Callable[[_Search, Pattern, Expr], Iterator[None]]] = {  # pyright: ignore[reportAssignmentType]
    WildcardPattern: _Search.leaf,
    VarPattern: _Search.leaf,
    ConstantPattern: _Search.leaf,
    OrPattern: _Search.either,
    OptionalPattern: _Search.either,
    AndPattern: _Search.both,
    NotPattern: _Search.negation,
    CallPattern: _Search.call,
    TuplePattern: _Search.tuple,
    TupleGetItemPattern: _Search.tuple_get_item,
    AttrPattern: _Search.inner,
    DtypePattern: _Search.inner,
    ShapePattern: _Search.inner,
    PredicatePattern: _Search.predicate,
    CapturePattern: _Search.capture,
}
