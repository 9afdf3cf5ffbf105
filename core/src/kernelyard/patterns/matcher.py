"""Finds where a pattern matches: backtracking search over one function's dataflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import PatternError
from kernelyard.ir.expr import Binding, Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, operands
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType
from kernelyard.patterns.dataflow import Dataflow
from kernelyard.patterns.pattern import (
    AndPattern,
    AttrPattern,
    CallPattern,
    CapturePattern,
    ConstantPattern,
    DtypePattern,
    NotPattern,
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


def match(pattern: Pattern, expr: Expr, bindings: Dataflow | Function | Mapping[Var, Expr]) -> Match | None:
    """The first way in which `pattern` matches `expr`, or None.

    expr: a Var (the usual case), or a value bound in `bindings`. bindings: the function around it.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.patterns import is_op, wildcard
        >>> b = FunctionBuilder()
        >>> y = b.op("nn.relu", b.input("x", (2, 2)))
        >>> match(is_op("nn.relu")(wildcard().capture("x")), y, b.function(y)).captures
        mappingproxy({'x': %x})
    """
    return next(matches(pattern, expr, bindings), None)


def matches(pattern: Pattern, expr: Expr, bindings: Dataflow | Function | Mapping[Var, Expr]) -> Iterator[Match]:
    """Every way in which `pattern` matches `expr`, best first: left alternatives and given operand order first."""
    dataflow = Dataflow.of(bindings)
    root = dataflow.resolve(_variable_of(expr, dataflow))
    search = _Search(dataflow)
    for _ in search.solve(pattern, root):
        if isinstance(root, Var):
            yield search.result(root)


def _variable_of(expr: Expr, dataflow: Dataflow) -> Expr:
    if isinstance(expr, (Var, Constant)):
        return expr
    bound = next((var for var, value in dataflow.values.items() if value is expr), None)
    if bound is None:
        raise PatternError("this value is not bound in the function given", found=type(expr).__name__)
    return bound


def same_value(left: Expr, right: Expr) -> bool:
    """True when two operands are the same variable, or constants of equal content."""
    if left is right:
        return True
    return (
        isinstance(left, Constant)
        and isinstance(right, Constant)
        and left.type == right.type
        and left.digest == right.digest
    )


class _Search:
    """State of one search. Each solver is a generator that yields once per way to match, with the state set
    accordingly, and takes its changes back before it goes on: plain backtracking."""

    def __init__(self, dataflow: Dataflow) -> None:
        self.dataflow = dataflow
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
            return
        if pattern.root_ops is not None and not self._ends_in(pattern.root_ops, expr):
            return
        self.bound[pattern] = expr
        yield from _SOLVERS[type(pattern)](self, pattern, expr)
        del self.bound[pattern]

    def _ends_in(self, ops: frozenset[str], expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        return isinstance(value, Call) and isinstance(value.op, Op) and value.op.name in ops

    def wildcard(self, pattern: WildcardPattern, expr: Expr) -> Iterator[None]:
        yield

    def var(self, pattern: VarPattern, expr: Expr) -> Iterator[None]:
        if not isinstance(expr, Constant):
            yield

    def constant(self, pattern: ConstantPattern, expr: Expr) -> Iterator[None]:
        if isinstance(expr, Constant) and (pattern.value is None or _all_close(expr, pattern.value, pattern.rtol)):
            yield

    def either(self, pattern: OrPattern, expr: Expr) -> Iterator[None]:
        yield from self.solve(pattern.left, expr)
        yield from self.solve(pattern.right, expr)

    def both(self, pattern: AndPattern, expr: Expr) -> Iterator[None]:
        for _ in self.solve(pattern.left, expr):
            yield from self.solve(pattern.right, expr)

    def negation(self, pattern: NotPattern, expr: Expr) -> Iterator[None]:
        attempt = self.solve(pattern.pattern, expr)
        found = next(attempt, self) is not self
        for _ in attempt:  # run to its end, so that it takes back what it bound
            pass
        if not found:
            yield

    def call(self, pattern: CallPattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        assert isinstance(value, Call)
        assert isinstance(value.op, Op)
        missing = len(value.args) - len(pattern.args)
        if missing < 0 or (missing and not pattern.varargs):
            return
        args = value.args[: len(pattern.args)]
        with_swapped = value.op.commutative and len(args) == 2 and not same_value(args[0], args[1])
        for operands_ in (args, args[::-1]) if with_swapped else (args,):
            yield from self._group(expr, pattern.args, operands_)

    def tuple(self, pattern: TuplePattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        if isinstance(value, Tuple) and len(value.fields) == len(pattern.fields):
            yield from self._group(expr, pattern.fields, value.fields)

    def tuple_get_item(self, pattern: TupleGetItemPattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        if isinstance(value, TupleGetItem) and pattern.index in (None, value.index):
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

    def attrs(self, pattern: AttrPattern, expr: Expr) -> Iterator[None]:
        value = self.dataflow.value_of(expr)
        if isinstance(value, Call) and all(_attr_fits(value, name, wanted) for name, wanted in pattern.attrs):
            yield from self.solve(pattern.pattern, expr)

    def dtype(self, pattern: DtypePattern, expr: Expr) -> Iterator[None]:
        if isinstance(expr.type, TensorType) and expr.type.dtype in pattern.dtypes:
            yield from self.solve(pattern.pattern, expr)

    def shape(self, pattern: ShapePattern, expr: Expr) -> Iterator[None]:
        if not isinstance(expr.type, TensorType) or len(expr.type.shape) != len(pattern.shape):
            return
        if all(wanted is None or dim == wanted for dim, wanted in zip(expr.type.shape, pattern.shape, strict=True)):
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
    WildcardPattern: _Search.wildcard,
    VarPattern: _Search.var,
    ConstantPattern: _Search.constant,
    OrPattern: _Search.either,
    AndPattern: _Search.both,
    NotPattern: _Search.negation,
    CallPattern: _Search.call,
    TuplePattern: _Search.tuple,
    TupleGetItemPattern: _Search.tuple_get_item,
    AttrPattern: _Search.attrs,
    DtypePattern: _Search.dtype,
    ShapePattern: _Search.shape,
    PredicatePattern: _Search.predicate,
    CapturePattern: _Search.capture,
}


def _attr_fits(call: Call, name: str, wanted: object) -> bool:
    if name not in call.attrs:
        return False
    value = call.attrs[name]
    if callable(wanted):
        return bool(wanted(value))
    return value == (tuple(wanted) if isinstance(wanted, list) else wanted)


def _all_close(constant: Constant, value: float, rtol: float) -> bool:
    if not constant.data.size:
        return False
    if dtypes.is_float(constant.tensor_type.dtype):
        return bool(np.all(np.abs(constant.data.astype(np.float64) - value) <= rtol * abs(value)))
    return bool(np.all(constant.data == value))
