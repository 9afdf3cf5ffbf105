"""May a pattern match a value at all? A necessary condition, remembered for every pattern and value.

The search proper (kernelyard.patterns.matcher) goes through alternatives one by one and must keep "one pattern object
is one value". Here that rule is left out, so the answer depends on the pattern and the value alone and is worked out
once. The search never enters what cannot match, which keeps it near-linear for patterns with many alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernelyard import dtypes
from kernelyard.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
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


class Feasibility:
    """Answers for one function."""

    def __init__(self, dataflow: Dataflow) -> None:
        self.dataflow = dataflow
        self._known: dict[tuple[Pattern, Expr], bool] = {}

    def may_match(self, pattern: Pattern, expr: Expr) -> bool:
        """False when `pattern` cannot match the operand; True decides nothing."""
        key = (pattern, expr)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _TESTS[type(pattern)](self, pattern, self.dataflow.resolve(expr))
        return known

    def _all(self, patterns: Sequence[Pattern], exprs: Sequence[Expr]) -> bool:
        return all(self.may_match(pattern, expr) for pattern, expr in zip(patterns, exprs, strict=True))

    def anything(self, pattern: Pattern, expr: Expr) -> bool:
        return True

    def var(self, pattern: VarPattern, expr: Expr) -> bool:
        return not isinstance(expr, Constant)

    def constant(self, pattern: ConstantPattern, expr: Expr) -> bool:
        return isinstance(expr, Constant) and (pattern.value is None or _holds_only(expr, pattern.value, pattern.rtol))

    def either(self, pattern: OrPattern, expr: Expr) -> bool:
        return self.may_match(pattern.left, expr) or self.may_match(pattern.right, expr)

    def both(self, pattern: AndPattern, expr: Expr) -> bool:
        return self.may_match(pattern.left, expr) and self.may_match(pattern.right, expr)

    def call(self, pattern: CallPattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, Call) or not isinstance(value.op, Op) or value.op.name not in pattern.ops:
            return False
        missing = len(value.args) - len(pattern.args)
        if missing < 0 or (missing and not pattern.varargs):
            return False
        return any(self._all(pattern.args, operands) for operands in operand_orders(value, len(pattern.args)))

    def tuple(self, pattern: TuplePattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, Tuple) or len(value.fields) != len(pattern.fields):
            return False
        return self._all(pattern.fields, value.fields)

    def tuple_get_item(self, pattern: TupleGetItemPattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, TupleGetItem) or pattern.index not in (None, value.index):
            return False
        return self.may_match(pattern.tuple_value, value.tuple_value)

    def attrs(self, pattern: AttrPattern, expr: Expr) -> bool:
        value = self.dataflow.value_of(expr)
        if not isinstance(value, Call) or not self.may_match(pattern.pattern, expr):
            return False
        return all(_attr_fits(value, name, wanted) for name, wanted in pattern.attrs)

    def dtype(self, pattern: DtypePattern, expr: Expr) -> bool:
        if not isinstance(expr.type, TensorType) or expr.type.dtype not in pattern.dtypes:
            return False
        return self.may_match(pattern.pattern, expr)

    def shape(self, pattern: ShapePattern, expr: Expr) -> bool:
        if not isinstance(expr.type, TensorType) or len(expr.type.shape) != len(pattern.shape):
            return False
        dims = zip(expr.type.shape, pattern.shape, strict=True)
        return all(wanted is None or dim == wanted for dim, wanted in dims) and self.may_match(pattern.pattern, expr)

    def inner(self, pattern: CapturePattern | PredicatePattern, expr: Expr) -> bool:
        return self.may_match(pattern.pattern, expr)


_TESTS: dict[type[Pattern], Callable[[Feasibility, Pattern, Expr], bool]] = {  # pyright: ignore[reportAssignmentType]
    WildcardPattern: Feasibility.anything,
    VarPattern: Feasibility.var,
    ConstantPattern: Feasibility.constant,
    OrPattern: Feasibility.either,
    OptionalPattern: Feasibility.either,
    AndPattern: Feasibility.both,
    NotPattern: Feasibility.anything,
    CallPattern: Feasibility.call,
    TuplePattern: Feasibility.tuple,
    TupleGetItemPattern: Feasibility.tuple_get_item,
    AttrPattern: Feasibility.attrs,
    DtypePattern: Feasibility.dtype,
    ShapePattern: Feasibility.shape,
    PredicatePattern: Feasibility.inner,
    CapturePattern: Feasibility.inner,
}


def operand_orders(call: Call, count: int) -> tuple[tuple[Expr, ...], ...]:
    """The first `count` operands of a call; for the two of a commutative op the swapped order as well."""
    args = call.args[:count]
    if isinstance(call.op, Op) and call.op.commutative and len(args) == 2 and not same_value(args[0], args[1]):
        return args, args[::-1]
    return (args,)


def same_value(left: Expr, right: Expr) -> bool:
    """True when two operands are the same variable, or constants of equal content."""
    if left is right:
        return True
    if not isinstance(left, Constant) or not isinstance(right, Constant):
        return False
    return left.type == right.type and left.digest == right.digest


def _attr_fits(call: Call, name: str, wanted: object) -> bool:
    if name not in call.attrs:
        return False
    value = call.attrs[name]
    if callable(wanted):
        return bool(wanted(value))
    return value == (tuple(wanted) if isinstance(wanted, list) else wanted)


def _holds_only(constant: Constant, value: float, rtol: float) -> bool:
    if not constant.data.size:
        return False
    if dtypes.is_float(constant.tensor_type.dtype):
        return bool(np.all(np.abs(constant.data.astype(np.float64) - value) <= rtol * abs(value)))
    return bool(np.all(constant.data == value))
