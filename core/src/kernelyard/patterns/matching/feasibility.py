"""May a pattern match a value at all? A necessary condition, remembered for every pattern and value.

The search proper (kernelyard.patterns.matching.matcher) goes through alternatives one by one and must keep "one
pattern object is one value". Here that rule is left out, so the answer depends on the pattern and the value alone and
is worked out once. The search never enters what cannot match, which keeps it near-linear for patterns with many
alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.ir.expr import (
    BaseFunction,
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
)
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType
from kernelyard.patterns.language.association import DIVIDE, quotients
from kernelyard.patterns.language.pattern import (
    AndPattern,
    AttrPattern,
    CallPattern,
    CapturePattern,
    ConstantPattern,
    DtypePattern,
    ExprPattern,
    ExternFuncPattern,
    FunctionCallPattern,
    FunctionPattern,
    GlobalVarPattern,
    NotPattern,
    OptionalPattern,
    OrPattern,
    Pattern,
    PredicatePattern,
    RootOps,
    SameShapePattern,
    ShapePattern,
    TupleGetItemPattern,
    TuplePattern,
    TypePattern,
    VarPattern,
    WildcardPattern,
)
from kernelyard.patterns.matching.dataflow import Dataflow


class Way(NamedTuple):
    """Patterns of operands, each with the operand that it is to match.

    inner: the other call, where a product over a number has another form than in the pattern.
    """

    patterns: Sequence[Pattern]
    operands: Sequence[Expr]
    inner: Expr | None = None


class Feasibility:
    """Answers for one function; `functions` are those of its module, by name."""

    def __init__(self, dataflow: Dataflow, functions: Mapping[str, BaseFunction] = MappingProxyType({})) -> None:
        self.dataflow = dataflow
        self.functions = functions
        self._known: dict[tuple[Pattern, Expr], bool] = {}

    def may_match(self, pattern: Pattern, expr: Expr) -> bool:
        """Return False when `pattern` cannot match the operand; True decides nothing."""
        key = (pattern, expr)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._ends_in(pattern.root_ops, expr) and _TESTS[type(pattern)](
                self, pattern, self.dataflow.resolve(expr)
            )
        return known

    def _ends_in(self, ops: RootOps, expr: Expr) -> bool:
        """Return True for a call of one of the operators: most alternatives of a large pattern end in another one."""
        return ops is None or getattr(self.dataflow.value_of(expr), "op_name", None) in ops

    def _all(self, patterns: Sequence[Pattern], exprs: Sequence[Expr]) -> bool:
        return all(self.may_match(pattern, expr) for pattern, expr in zip(patterns, exprs, strict=True))

    def anything(self, pattern: Pattern, expr: Expr) -> bool:
        return True

    def var(self, pattern: VarPattern, expr: Expr) -> bool:
        return isinstance(expr, Var) and pattern.name in ("", expr.name)

    def expr(self, pattern: ExprPattern, expr: Expr) -> bool:
        return is_same_value(self.dataflow.resolve(pattern.expr), expr)

    def global_var(self, pattern: GlobalVarPattern, expr: Expr) -> bool:
        return isinstance(expr, GlobalVar) and pattern.name in ("", expr.name)

    def extern_func(self, pattern: ExternFuncPattern, expr: Expr) -> bool:
        return isinstance(expr, ExternFunc) and pattern.symbol in ("", expr.symbol)

    def function(self, pattern: FunctionPattern, expr: Expr) -> bool:
        function = self.functions.get(expr.name) if isinstance(expr, GlobalVar) else None
        return isinstance(function, Function) and len(function.params) == len(pattern.params)

    def constant(self, pattern: ConstantPattern, expr: Expr) -> bool:
        return isinstance(expr, Constant) and (pattern.value is None or _holds_only(expr, pattern.value, pattern.rtol))

    def either(self, pattern: OrPattern, expr: Expr) -> bool:
        return self.may_match(pattern.left, expr) or self.may_match(pattern.right, expr)

    def both(self, pattern: AndPattern, expr: Expr) -> bool:
        return self.may_match(pattern.left, expr) and self.may_match(pattern.right, expr)

    def call(self, pattern: CallPattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return False
        if not pattern.names(value.op.name) and not pattern.quotients:
            return False
        return any(self._all(way.patterns, way.operands) for way in self.ways(pattern, value))

    def ways(self, pattern: CallPattern, call: Call) -> Iterator[Way]:
        """Enumerate assignments of a call's operands to those of a pattern, best first."""
        if pattern.names(call.op_name) and _counts_fit(pattern, call):
            for operands in operand_choices(pattern, call):
                yield Way(pattern.args, operands)
        if pattern.quotients and isinstance(call.type, TensorType) and dtypes.is_float(call.type.dtype):
            # Integers are rounded after each step, so there the form counts.
            yield from self._reassociate(pattern, call)

    def _reassociate(self, pattern: CallPattern, call: Call) -> Iterator[Way]:
        """Yield the ways that only another form allows."""
        is_as_written = pattern.names(call.op_name)
        if is_as_written and call.op_name == DIVIDE:
            return  # the factors of the product inside may be swapped anyway
        for wanted, found in product(pattern.quotients, quotients(call.op_name, call.args, self._operands_of)):
            swapped = found.factors[::-1]
            for factors in (swapped,) if is_as_written else (found.factors, swapped):
                yield Way((*wanted.factors, wanted.divisor), (*factors, found.divisor), found.inner)

    def _operands_of(self, operand: Expr, op: str) -> Sequence[Expr] | None:
        value = self.dataflow.value_of(operand)
        return value.args if isinstance(value, Call) and value.op_name == op else None

    def function_call(self, pattern: FunctionCallPattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, Call) or not isinstance(value.op, GlobalVar) or not _counts_fit(pattern, value):
            return False
        return self.may_match(pattern.callee, value.op) and self._all(pattern.args, value.args[: len(pattern.args)])

    def tuple(self, pattern: TuplePattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, Tuple) or len(value.fields) != len(pattern.fields):
            return False
        if pattern.unordered:
            return all(any(self.may_match(field, value_) for value_ in value.fields) for field in pattern.fields)
        return self._all(pattern.fields, value.fields)

    def tuple_get_item(self, pattern: TupleGetItemPattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, TupleGetItem) or pattern.index not in (None, value.index):
            return False
        return self.may_match(pattern.tuple_value, value.tuple_value)

    def attrs(self, pattern: AttrPattern, expr: Expr) -> bool:
        attrs = self._attributes(self.dataflow.value_of(expr))
        return self.may_match(pattern.pattern, expr) and all(_attr_fits(attrs, *wanted) for wanted in pattern.attrs)

    def _attributes(self, value: Expr) -> Mapping[str, object]:
        """Return the attributes of a call, over those of the function that it calls; or those of a function."""
        callee = value.op if isinstance(value, Call) else value
        function = self.functions.get(callee.name) if isinstance(callee, GlobalVar) else None
        attrs = {} if function is None else dict(function.attrs)
        return {**attrs, **value.attrs} if isinstance(value, Call) else attrs

    def dtype(self, pattern: DtypePattern, expr: Expr) -> bool:
        if not isinstance(expr.type, TensorType) or expr.type.dtype not in pattern.dtypes:
            return False
        return self.may_match(pattern.pattern, expr)

    def shape(self, pattern: ShapePattern, expr: Expr) -> bool:
        if not isinstance(expr.type, TensorType) or len(expr.type.shape) != len(pattern.shape):
            return False
        dims = zip(expr.type.shape, pattern.shape, strict=True)
        return all(wanted is None or dim == wanted for dim, wanted in dims) and self.may_match(pattern.pattern, expr)

    def type(self, pattern: TypePattern, expr: Expr) -> bool:
        return expr.type == pattern.type and self.may_match(pattern.pattern, expr)

    def inner(self, pattern: CapturePattern | PredicatePattern | SameShapePattern, expr: Expr) -> bool:
        return self.may_match(pattern.pattern, expr)


_TESTS: dict[type[Pattern], Callable[[Feasibility, Pattern, Expr], bool]] = {  # pyright: ignore[reportAssignmentType]
    WildcardPattern: Feasibility.anything,
    VarPattern: Feasibility.var,
    ExprPattern: Feasibility.expr,
    GlobalVarPattern: Feasibility.global_var,
    ExternFuncPattern: Feasibility.extern_func,
    FunctionPattern: Feasibility.function,
    ConstantPattern: Feasibility.constant,
    OrPattern: Feasibility.either,
    OptionalPattern: Feasibility.either,
    AndPattern: Feasibility.both,
    NotPattern: Feasibility.anything,
    CallPattern: Feasibility.call,
    FunctionCallPattern: Feasibility.function_call,
    TuplePattern: Feasibility.tuple,
    TupleGetItemPattern: Feasibility.tuple_get_item,
    AttrPattern: Feasibility.attrs,
    DtypePattern: Feasibility.dtype,
    ShapePattern: Feasibility.shape,
    TypePattern: Feasibility.type,
    SameShapePattern: Feasibility.inner,
    PredicatePattern: Feasibility.inner,
    CapturePattern: Feasibility.inner,
}


def operand_choices(pattern: CallPattern, call: Call) -> Iterable[tuple[Expr, ...]]:
    """Return the operands of a call that a pattern's may stand for; the call has enough of them."""
    if pattern.ops is not None:
        return operand_orders(call, len(pattern.args))
    orders = operand_orders(call, len(call.args))
    return dict.fromkeys(chosen for order in orders for chosen in combinations(order, len(pattern.args)))


def operand_orders(call: Call, count: int) -> tuple[tuple[Expr, ...], ...]:
    """Return the first `count` operands of a call; for the two of a commutative op the swapped order as well."""
    args = call.args[:count]
    if isinstance(call.op, Op) and call.op.commutative and len(args) == 2 and not is_same_value(args[0], args[1]):
        return args, args[::-1]
    return (args,)


def is_same_value(left: Expr, right: Expr) -> bool:
    """Return True when two operands are the same variable, constants of equal content, or the same function."""
    if left is right:
        return True
    if isinstance(left, Constant) and isinstance(right, Constant):
        return left.type == right.type and left.digest == right.digest
    if isinstance(left, GlobalVar) and isinstance(right, GlobalVar):
        return left.name == right.name
    return isinstance(left, ExternFunc) and isinstance(right, ExternFunc) and left.symbol == right.symbol


def _counts_fit(pattern: CallPattern | FunctionCallPattern, call: Call) -> bool:
    more = len(call.args) - len(pattern.args)
    return more == 0 or (more > 0 and pattern.varargs)


def _attr_fits(attrs: Mapping[str, object], name: str, wanted: object) -> bool:
    if name not in attrs:
        return False
    value = attrs[name]
    if callable(wanted):
        return bool(wanted(value))
    return value == (tuple(wanted) if isinstance(wanted, list) else wanted)


def _holds_only(constant: Constant, value: float, rtol: float) -> bool:
    if not constant.data.size:
        return False
    if dtypes.is_float(constant.tensor_type.dtype):
        return bool(np.isclose(constant.data.astype(np.float64), value, rtol, 0.0).all())  # of infinities, too
    return bool(np.all(constant.data == value))
