"""Explain why a pattern does not match a value: the first part that fails, and the value found there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelyard.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
from kernelyard.ir.op import Op
from kernelyard.patterns.language.pattern import (
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
    SameShapePattern,
    ShapePattern,
    TupleGetItemPattern,
    TuplePattern,
    TypePattern,
    VarPattern,
    WildcardPattern,
)
from kernelyard.patterns.language.pattern_parts import has_predicate
from kernelyard.patterns.matching.feasibility import Feasibility, operand_choices

MAX_NAMED = 4  # ops of an alternative that a message names


@dataclass(frozen=True)
class NearMiss:
    """The first part of a pattern that failed.

    fitted: how many operators of the pattern fit before it; the more, the nearer. place: where the part is, from the
    root, "" for the root itself. expected: what the part asks for. found: what is there.
    """

    fitted: int
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}expected {self.expected}, found {self.found}"


class NearMisses:
    """Answers for the patterns and values of one function, each worked out once.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.patterns import is_const, is_op, wildcard
        >>> from kernelyard.patterns.matching.matcher import Matcher
        >>> b = FunctionBuilder()
        >>> x = b.input("x", (2, 2))
        >>> y = b.op("matmul", x, x)
        >>> misses = NearMisses(Matcher(b.function(y)).feasibility)
        >>> print(misses.find(is_op("matmul")(wildcard(), is_const()), y))
        operand 1 of matmul: expected a constant, found %x
    """

    def __init__(self, feasibility: Feasibility) -> None:
        self.feasibility = feasibility
        self._known: dict[tuple[Pattern, Expr], NearMiss | None] = {}

    def find(self, pattern: Pattern, expr: Expr) -> NearMiss | None:
        """Return the first part of `pattern` that fails on `expr`; None when each part fits for itself."""
        key = (pattern, expr)
        if key not in self._known:
            explain = _EXPLAINERS.get(type(pattern), NearMisses._whole)
            # a predicate is not evaluated by `may_match`
            fits = not has_predicate(pattern) and self.feasibility.may_match(pattern, expr)
            self._known[key] = None if fits else explain(self, pattern, self.feasibility.dataflow.resolve(expr))
        return self._known[key]

    def _value(self, expr: Expr) -> Expr:
        return self.feasibility.dataflow.value_of(expr)

    def _whole(self, pattern: Pattern, expr: Expr) -> NearMiss:
        return NearMiss(0, "", describe(pattern), self._describe_value(expr))

    def _describe_value(self, expr: Expr) -> str:
        value = self._value(expr)
        if isinstance(value, Constant):
            return f"a constant {value.type!r}"
        if isinstance(value, Call):
            return value.op_name if isinstance(value.op, Op) else f"a call of {value.op!r}"
        if isinstance(value, (Tuple, TupleGetItem)):
            return "a tuple" if isinstance(value, Tuple) else "a field of a tuple"
        return repr(value)

    def _call(self, pattern: CallPattern, expr: Expr) -> NearMiss | None:
        value = self._value(expr)
        if not isinstance(value, Call) or not isinstance(value.op, Op) or not pattern.names(value.op_name):
            return self._whole(pattern, expr)
        if len(value.args) < len(pattern.args) or (len(value.args) > len(pattern.args) and not pattern.varargs):
            return NearMiss(1, f"operands of {value.op_name}", str(len(pattern.args)), str(len(value.args)))
        choices = operand_choices(pattern, value)
        return _nearest([self._operands(pattern.args, chosen, value.op_name) for chosen in choices])

    def _operands(self, patterns: Sequence[Pattern], exprs: Sequence[Expr], op: str) -> NearMiss | None:
        fitted = 1
        for i, (pattern, expr) in enumerate(zip(patterns, exprs, strict=True)):
            miss = self.find(pattern, expr)
            if miss is not None:
                return replace(miss, fitted=fitted + miss.fitted, place=miss.place or f"operand {i} of {op}")
            fitted += _depth_of_call(pattern)
        return None

    def _either(self, pattern: OrPattern, expr: Expr) -> NearMiss | None:
        left, right = self.find(pattern.left, expr), self.find(pattern.right, expr)
        nearest = _nearest([left, right])
        if left and right and nearest and not nearest.fitted and not nearest.place:
            return self._whole(pattern, expr)  # nothing of any alternative fits: all of them were expected
        return nearest

    def _both(self, pattern: AndPattern, expr: Expr) -> NearMiss | None:
        return self.find(pattern.left, expr) or self.find(pattern.right, expr)

    def _attributes(self, pattern: AttrPattern, expr: Expr) -> NearMiss:
        inner = self.find(pattern.pattern, expr)
        if inner is not None:
            return inner
        value = self._value(expr)
        attrs = value.attrs if isinstance(value, Call) else {}
        for name, wanted in pattern.attrs:
            fits = wanted(attrs[name]) if callable(wanted) and name in attrs else attrs.get(name) == _as_value(wanted)
            if not fits:
                expected = f"that {_name_of(wanted)} holds" if callable(wanted) else repr(_as_value(wanted))
                op = value.op_name if isinstance(value, Call) else "a value"
                return NearMiss(1, f"attribute {name} of {op}", expected, repr(attrs.get(name, "none")))
        return self._whole(pattern, expr)

    def _type(self, pattern: DtypePattern | ShapePattern | TypePattern, expr: Expr) -> NearMiss:
        inner = self.find(pattern.pattern, expr)
        return inner or NearMiss(0, "", describe(pattern), repr(expr.type))

    def _predicate(self, pattern: PredicatePattern, expr: Expr) -> NearMiss | None:
        inner = self.find(pattern.pattern, expr)
        if inner is not None:
            return inner
        try:
            holds = pattern.predicate(expr)
        except Exception as error:  # a vendor's code
            return NearMiss(0, "", f"that {_name_of(pattern.predicate)} answers", repr(error))
        return (
            None if holds else NearMiss(0, "", f"that {_name_of(pattern.predicate)} holds", self._describe_value(expr))
        )

    def _inner(self, pattern: CapturePattern | SameShapePattern, expr: Expr) -> NearMiss | None:
        return self.find(pattern.pattern, expr)

    def _field(self, pattern: TupleGetItemPattern, expr: Expr) -> NearMiss | None:
        value = self._value(expr)
        if not isinstance(value, TupleGetItem) or pattern.index not in (None, value.index):
            return self._whole(pattern, expr)
        return self.find(pattern.tuple_value, value.tuple_value)


_EXPLAINERS: dict[type[Pattern], Callable[[NearMisses, Pattern, Expr], NearMiss | None]] = {  # pyright: ignore[reportAssignmentType]
    CallPattern: NearMisses._call,
    AndPattern: NearMisses._both,
    AttrPattern: NearMisses._attributes,
    DtypePattern: NearMisses._type,
    ShapePattern: NearMisses._type,
    TypePattern: NearMisses._type,
    PredicatePattern: NearMisses._predicate,
    CapturePattern: NearMisses._inner,
    SameShapePattern: NearMisses._inner,
    TupleGetItemPattern: NearMisses._field,
}
_EXPLAINERS |= dict.fromkeys((OrPattern, OptionalPattern), NearMisses._either)  # pyright: ignore[reportAssignmentType]


def describe(pattern: Pattern) -> str:
    """Describe in a few words what a pattern matches.

    Example:
        >>> from kernelyard.patterns import is_const, is_op
        >>> describe(is_op("nn.relu")(is_const()) | is_const())
        'nn.relu or a constant'
    """
    parts = list(dict.fromkeys(_parts(pattern)))
    more = f" or {len(parts) - MAX_NAMED} more" if len(parts) > MAX_NAMED else ""
    return " or ".join(parts[:MAX_NAMED]) + more


def _parts(pattern: Pattern) -> list[str]:
    if isinstance(pattern, OrPattern):
        return _parts(pattern.left) + _parts(pattern.right)
    if isinstance(pattern, CallPattern):
        return ["any operator"] if pattern.ops is None else list(pattern.ops)
    if isinstance(pattern, ConstantPattern):
        return ["a constant" if pattern.value is None else f"a constant of {pattern.value:g} everywhere"]
    if isinstance(pattern, DtypePattern):
        return ["/".join(pattern.dtypes)]
    if isinstance(pattern, ShapePattern):
        return [f"the shape ({', '.join('any' if dim is None else str(dim) for dim in pattern.shape)})"]
    if isinstance(pattern, TypePattern):
        return [repr(pattern.type)]
    if isinstance(pattern, NotPattern):
        return [f"not {describe(pattern.pattern)}"]
    if isinstance(pattern, (AttrPattern, CapturePattern, PredicatePattern, SameShapePattern)):
        return _parts(pattern.pattern)
    if isinstance(pattern, AndPattern):
        return [f"{describe(pattern.left)} and {describe(pattern.right)}"]
    return [_NAMES.get(type(pattern), "something else")]


_NAMES: dict[type[Pattern], str] = {
    WildcardPattern: "anything",
    VarPattern: "a variable",
    TuplePattern: "a tuple",
    TupleGetItemPattern: "a field of a tuple",
}


def _nearest(misses: Sequence[NearMiss | None]) -> NearMiss | None:
    """Return the one that got furthest; None when one of them is no miss."""
    if any(miss is None for miss in misses):
        return None
    return max((miss for miss in misses if miss is not None), key=lambda miss: miss.fitted)


def _depth_of_call(pattern: Pattern) -> int:
    """Return 1 for a pattern that constrains its value; operands that match anything do not count."""
    return 1 if pattern.root_ops is not None or isinstance(pattern, ConstantPattern) else 0


def _as_value(wanted: object) -> object:
    return tuple(wanted) if isinstance(wanted, list) else wanted


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", "")
    return "its condition" if name in ("", "<lambda>") else name.strip("_")
