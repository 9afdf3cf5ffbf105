"""The dataflow pattern language: what a group of operators looks like, written as an expression.

A pattern is matched against a value and, through the variables that the value reads, against the values that made
it. One pattern object stands for one value: the same object used twice means "the same value twice"; `dup()` makes
an independent copy.

Example:
    >>> from kernelyard.patterns import is_const, is_op, wildcard
    >>> data, weight = wildcard().capture("data"), is_const().capture("weight")
    >>> convolution = is_op("nn.conv2d")(data, weight)
    >>> pattern = convolution.optional(lambda p: is_op("nn.relu")(p))
    >>> sorted(pattern.root_ops)
    ['nn.conv2d', 'nn.relu']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeAlias

from kernelyard.cached_property import cached_property
from kernelyard.dims import Dim
from kernelyard.errors import PatternError
from kernelyard.ir.expr import Expr
from kernelyard.ir.types import Type
from kernelyard.patterns.language.association import DIVIDE, MULTIPLY, Quotient, quotients
from kernelyard.patterns.language.pattern_context import PatternSeq, Sequenced, record_pattern
from kernelyard.patterns.op_checks import check_attributes
from kernelyard.records import record

RootOps: TypeAlias = "frozenset[str] | None"  # None: the root may be anything


class Pattern:
    """Base of all patterns: how they are combined and constrained. Patterns compare by identity."""

    def __post_init__(self) -> None:
        record_pattern(self)

    def __call__(self, *args: Pattern, varargs: bool = False) -> Pattern:
        """Return a call of a module's function that this pattern matches.

        `varargs`: operands beyond `args` are free.
        """
        return FunctionCallPattern(self, check_operands(args, "a function"), varargs)

    def __or__(self, other: Pattern) -> Pattern:
        """Match either pattern; the left one is tried first."""
        return OrPattern(self, *check_operands((other,), "|"))

    def __and__(self, other: Pattern) -> Pattern:
        """Match both patterns on the same value."""
        return AndPattern(self, *check_operands((other,), "&"))

    def __invert__(self) -> Pattern:
        """Match any value that this pattern does not match; captures nothing."""
        return NotPattern(self)

    def __getitem__(self, index: int | None) -> Pattern:
        """Field `index` of a tuple value; None: any field."""
        return TupleGetItemPattern(self, index)

    def has_attr(self, **attrs: Any) -> Pattern:
        """Return a call whose attributes have these values; a callable is a predicate on the value.

        Raises: PatternError for an attribute that no operator has which the pattern may stand for.
        """
        if self.root_ops is not None:
            check_attributes(self.root_ops, attrs)
        return AttrPattern(self, tuple(attrs.items()))

    def has_dtype(self, *dtypes: str) -> Pattern:
        """Return a tensor of one of these element types."""
        return DtypePattern(self, dtypes)

    def has_shape(self, *shape: Dim | None) -> Pattern:
        """Return a tensor whose dims are provably these; None: any dim."""
        return ShapePattern(self, shape)

    def has_type(self, type_: Type) -> Pattern:
        """Return a value provably of this type; symbolic dims are compared as expressions."""
        return TypePattern(self, type_)

    def same_shape_as(self, *others: Pattern) -> Pattern:
        """Return a tensor whose shape is provably that of what the other patterns stand for; all of them must take
        part.
        """
        return SameShapePattern(self, others)

    def used_by(self, other: Sequenced, index: int | None = None) -> PatternSeq:
        """Require that `other` reads this value as operand `index` (None: any): `p ^ other`. See `PatternContext`."""
        return PatternSeq((self,)).used_by(other, index)

    def only_used_by(self, other: Sequenced, index: int | None = None) -> PatternSeq:
        """Require that only `other` reads this value: `p >> other`. See `PatternContext`."""
        return PatternSeq((self,)).only_used_by(other, index)

    __xor__ = used_by
    __rshift__ = only_used_by

    def fork_to(self, *others: Sequenced) -> None:
        """Require that each of `others` reads this value."""
        for other in others:
            self.used_by(other)

    def where(self, predicate: Callable[[Expr], bool]) -> Pattern:
        """Return a value for which `predicate` holds; it is given the operand (a Var or Constant), of known type."""
        return PredicatePattern(self, predicate)

    def optional(self, wrap: Callable[[Pattern], Pattern]) -> Pattern:
        """Match `wrap(self)` if possible, else `self` alone."""
        # Optional on optional of the same kind: each length is reached in one way only, else matches would multiply.
        alone = self.right if isinstance(self, OptionalPattern) and self.wrap is wrap else self
        return OptionalPattern(wrap(self), alone, wrap)

    def repeated(self, wrap: Callable[[Pattern], Pattern], at_most: int) -> Pattern:
        """Match `wrap` applied to this pattern, as often as possible and at most `at_most` times.

        Example:
            >>> from kernelyard.patterns import is_op, wildcard
            >>> pattern = is_op("matmul")(wildcard(), wildcard()).repeated(lambda p: is_op("nn.relu", "tanh")(p), 3)
        """
        pattern: Pattern = self
        for _ in range(at_most):
            pattern = pattern.optional(wrap)
        return pattern

    def capture(self, name: str) -> Pattern:
        """Keep the matched value under `name` in `Match.captures`."""
        return CapturePattern(self, name)

    def dup(self) -> Pattern:
        """Return an independent copy: its parts stand for other values."""
        return _duplicate(self, {})

    @cached_property
    def root_ops(self) -> RootOps:
        """Names of the ops that a match can end in; None when that may be anything. Patterns are indexed by this."""
        return self._root_ops()

    def _root_ops(self) -> RootOps:
        return None


@record(eq=False)
class WildcardPattern(Pattern):
    """Any value. Called, it is a call of any operator: `wildcard()(conv)` is whatever reads a convolution."""

    def __call__(self, *args: Pattern, varargs: bool = True) -> Pattern:
        """Return a call of any operator that has operands like `args`, in this order.

        `varargs`: it may have others among them, which are free.
        """
        return CallPattern(None, check_operands(args, "an operator"), varargs)


@record(eq=False)
class VarPattern(Pattern):
    """A variable, of this name when one is given."""

    name: str = ""


@record(eq=False)
class ExprPattern(Pattern):
    """Exactly this operand; a constant of equal content is the same operand."""

    expr: Expr


@record(eq=False)
class GlobalVarPattern(Pattern):
    """A reference to a function of the module, of this name when one is given."""

    name: str = ""


@record(eq=False)
class ExternFuncPattern(Pattern):
    """A reference to a function of an attached RuntimeModule, of this symbol when one is given."""

    symbol: str = ""


@record(eq=False)
class FunctionPattern(Pattern):
    """A reference to a function whose parameters and result match; see `is_function`."""

    params: tuple[Pattern, ...]
    result: Pattern


@record(eq=False)
class ConstantPattern(Pattern):
    """A constant; with `value`, one whose every element is that number within `rtol`."""

    value: float | None = None
    rtol: float = 1e-5


@record(eq=False)
class CallPattern(Pattern):
    """A call of one of `ops`; None: of any operator. With `varargs` the call may have more operands than `args`, which
    are free: behind these for known operators, anywhere for any.

    The two operands of a commutative op are tried in both orders, and of a product over a number the other forms.
    """

    ops: tuple[str, ...] | None
    args: tuple[Pattern, ...]
    varargs: bool = False

    def names(self, op: str) -> bool:
        """Return True for one of the operators."""
        return self.ops is None or op in self.ops

    @cached_property
    def quotients(self) -> tuple[Quotient[Pattern], ...]:
        """The ways to read this as a product over a number, where the pattern has the inner call, without a name."""
        return quotients(self.ops[0], self.args, _operands_of) if self.ops and len(self.ops) == 1 else ()

    def _root_ops(self) -> RootOps:
        return None if self.ops is None else frozenset((MULTIPLY, DIVIDE) if self.quotients else self.ops)


@record(eq=False)
class FunctionCallPattern(Pattern):
    """A call of a function of the module; `callee` matches its GlobalVar."""

    callee: Pattern
    args: tuple[Pattern, ...]
    varargs: bool = False


@record(eq=False)
class TuplePattern(Pattern):
    """A tuple of these fields, in any order when `unordered`."""

    fields: tuple[Pattern, ...]
    unordered: bool = False


@record(eq=False)
class TupleGetItemPattern(Pattern):
    """A field of a tuple value; `index` None: any field."""

    tuple_value: Pattern
    index: int | None = None


@record(eq=False)
class OrPattern(Pattern):
    """`left`, else `right`."""

    left: Pattern
    right: Pattern

    def _root_ops(self) -> RootOps:
        left, right = self.left.root_ops, self.right.root_ops
        return None if left is None or right is None else left | right


@record(eq=False)
class OptionalPattern(OrPattern):
    """`left`, which is `wrap` applied to something, else `right`."""

    wrap: Callable[[Pattern], Pattern]


@record(eq=False)
class AndPattern(Pattern):
    """`left` and `right`."""

    left: Pattern
    right: Pattern

    def _root_ops(self) -> RootOps:
        left, right = self.left.root_ops, self.right.root_ops
        if left is None or right is None:
            return right if left is None else left
        return left & right


@record(eq=False)
class NotPattern(Pattern):
    """Whatever `pattern` does not match."""

    pattern: Pattern


@record(eq=False)
class WrapperPattern(Pattern):
    """A pattern with something added to it."""

    pattern: Pattern

    def _root_ops(self) -> RootOps:
        return self.pattern.root_ops


@record(eq=False)
class AttrPattern(WrapperPattern):
    """Constrains attributes of a call."""

    attrs: tuple[tuple[str, Any], ...]


@record(eq=False)
class DtypePattern(WrapperPattern):
    """Constrains the element type."""

    dtypes: tuple[str, ...]


@record(eq=False)
class ShapePattern(WrapperPattern):
    """Constrains the shape."""

    shape: tuple[Dim | None, ...]


@record(eq=False)
class TypePattern(WrapperPattern):
    """Constrains the type."""

    type: Type


@record(eq=False)
class SameShapePattern(WrapperPattern):
    """Constrains the shape to that of other patterns' values."""

    others: tuple[Pattern, ...]


@record(eq=False)
class PredicatePattern(WrapperPattern):
    """Constrains the value by a function."""

    predicate: Callable[[Expr], bool]


@record(eq=False)
class CapturePattern(WrapperPattern):
    """Names the value."""

    name: str


def _operands_of(pattern: Pattern, op: str) -> tuple[Pattern, ...] | None:
    if isinstance(pattern, CallPattern) and pattern.ops == (op,) and len(pattern.args) == 2:
        return pattern.args
    return None


def check_operands(args: tuple[Any, ...], callee: str) -> tuple[Pattern, ...]:
    for arg in args:
        if not isinstance(arg, Pattern):
            raise PatternError(
                f"an operand of {callee} is not a pattern",
                found=repr(arg),
                expected="wildcard(), is_const(), is_op(...)(...), ...",
                hint="write them one after another: f(a, b)" if isinstance(arg, (list, tuple)) else None,
            )
    return args


def field_values(pattern: Pattern) -> Mapping[str, Any]:
    """Return what a pattern is made of, by name."""
    return {field.name: getattr(pattern, field.name) for field in fields(pattern)}  # pyright: ignore[reportArgumentType]


def _duplicate(pattern: Pattern, done: dict[Pattern, Pattern]) -> Pattern:
    if pattern not in done:
        changed = {name: _duplicate_value(value, done) for name, value in field_values(pattern).items()}
        done[pattern] = replace(pattern, **changed)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return done[pattern]


def _duplicate_value(value: Any, done: dict[Pattern, Pattern]) -> Any:
    if isinstance(value, Pattern):
        return _duplicate(value, done)
    if isinstance(value, tuple):
        return tuple(_duplicate_value(item, done) for item in value)
    return value
