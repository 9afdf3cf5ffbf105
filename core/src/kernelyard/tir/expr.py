"""Scalar expressions of loop-level code: what one element of a compute block is.

Expressions are immutable and compare by value; every one has a `dtype`. Operands of a binary operation have one dtype:
conversions are written as `Cast`. Python operators build expressions (`a + b`, `a < b`, `a & b`), except `==`, which
compares the expressions themselves; the operation is `equal(a, b)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TypeAlias

from kernelyard import dims, dtypes
from kernelyard.cached_property import cached_property
from kernelyard.dims import Dim
from kernelyard.errors import IRError
from kernelyard.tir.buffer import Buffer

INDEX = "int64"
Scalar: TypeAlias = "bool | int | float"
ExprLike: TypeAlias = "Expr | bool | int | float | dims.SymbolicDim"

# Operators and the operand dtypes they take: f(loat), i(nteger), b(ool), w(ord: int32).
UNARY: dict[str, str] = {
    **dict.fromkeys(("neg", "abs", "sign"), "fi"),
    **dict.fromkeys(("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "erf", "sigmoid"), "f"),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), "f"),
    **dict.fromkeys(("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"), "f"),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "isnan", "isinf"), "f"),
    "not": "b",
    "bitnot": "i",
}
BINARY: dict[str, str] = {
    **dict.fromkeys(("add", "sub", "mul", "pow", "mod", "fmod"), "fi"),
    "div": "f",
    **dict.fromkeys(("floordiv", "truncdiv"), "i"),
    **dict.fromkeys(("min", "max"), "fib"),
    **dict.fromkeys(("and", "or", "xor"), "ib"),
    **dict.fromkeys(("shl", "shr"), "i"),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), "fib"),
}
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
PREDICATES = frozenset({"isnan", "isinf"})


class Expr:
    """Base of all scalar expressions."""

    dtype: str

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Return the key of structural equality."""
        return tuple([getattr(self, name) for name in _field_names(type(self))])

    @cached_property
    def _hash(self) -> int:
        return hash((type(self).__name__, self.key))

    @cached_property
    def size(self) -> int:
        """The number of nodes, shared ones counted at each use."""
        return 1 + sum(child.size for child in self.children)

    @cached_property
    def depth(self) -> int:
        """The number of nodes on the longest way down."""
        return 1 + max((child.depth for child in self.children), default=0)

    @property
    def children(self) -> tuple[Expr, ...]:
        """Sub-expressions, left to right."""
        return ()

    def with_children(self, new: tuple[Expr, ...]) -> Expr:
        """Return the same operation over other sub-expressions."""
        return self

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._hash == other._hash and self.key == other.key  # pyright: ignore[reportAttributeAccessIssue]

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("mod", self, other)

    def __and__(self, other: ExprLike) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return binary("or", self, other)

    def __lt__(self, other: ExprLike) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return binary("ge", self, other)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __invert__(self) -> Expr:
        return unary("not" if self.dtype == "bool" else "bitnot", self)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, eq=False)
class Axis(Expr):
    """The value of a block's iteration variable, by name; int64, in [0, extent)."""

    name: str
    dtype = INDEX


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A literal. `value` is a bool, int or float according to dtype (floats are exact in it)."""

    value: Scalar
    dtype: str

    @cached_property
    def key(self) -> tuple[object, ...]:
        # 0.0 == -0.0 and nan != nan in Python; as literals it is the other way round.
        return (self.value.hex() if isinstance(self.value, float) else self.value, self.dtype)


@dataclass(frozen=True, eq=False)
class DimValue(Expr):
    """The value of a symbolic dim; int64."""

    dim: Dim
    dtype = INDEX


@dataclass(frozen=True, eq=False)
class Load(Expr):
    """An element of a buffer; one int64 index per dimension."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.buffer.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def with_children(self, new: tuple[Expr, ...]) -> Expr:
        return Load(self.buffer, new)


@dataclass(frozen=True, eq=False)
class Unary(Expr):
    """An operation of `UNARY` on one operand."""

    op: str
    x: Expr

    @property
    def dtype(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "bool" if self.op in PREDICATES else self.x.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.x,)

    def with_children(self, new: tuple[Expr, ...]) -> Expr:
        return Unary(self.op, *new)


@dataclass(frozen=True, eq=False)
class Binary(Expr):
    """An operation of `BINARY` on two operands of one dtype.

    Integers wrap. `mod` has the sign of the divisor, `fmod` that of the dividend; `min` and `max` return NaN when an
    operand is NaN; `and`, `or` and `xor` are bitwise on integers and logical (both sides evaluated) on bools;
    `shr` is arithmetic on signed integers; shifts by the width or more give 0 (-1 for `shr` of negatives).
    """

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "bool" if self.op in COMPARISONS else self.a.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def with_children(self, new: tuple[Expr, ...]) -> Expr:
        return Binary(self.op, *new)


@dataclass(frozen=True, eq=False)
class Select(Expr):
    """`a` where the condition holds, else `b`. Lazy: loads of the branch not taken are not performed."""

    condition: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.a.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.a, self.b)

    def with_children(self, new: tuple[Expr, ...]) -> Expr:
        return Select(*new)


@dataclass(frozen=True, eq=False)
class Cast(Expr):
    """A conversion. Floats to integers truncate toward zero; anything to bool is `!= 0`; integers wrap."""

    x: Expr
    dtype: str

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.x,)

    def with_children(self, new: tuple[Expr, ...]) -> Expr:
        return Cast(new[0], self.dtype)


def const(value: ExprLike, dtype: str) -> Expr:
    """Return a literal of a dtype; expressions pass through.

    Raises: IRError when an expression has another dtype.
    """
    if isinstance(value, Expr):
        if value.dtype != dtype:
            raise IRError("operands have different dtypes", found=value.dtype, expected=dtype)
        return value
    if isinstance(value, dims.SymbolicDim):
        return const(DimValue(value), dtype)
    if dtype == "bool":
        return Const(bool(value), dtype)
    if dtypes.is_float(dtype):
        return Const(float(dtypes.to_numpy(dtype).type(value)), dtype)
    return Const(int(value), dtype)


def index(value: ExprLike) -> Expr:
    """Return an int64 expression of a number, a dim or an expression."""
    return const(value, INDEX)


def load(buffer: Buffer, indices: Sequence[ExprLike]) -> Load:
    """Return a checked `Load`; numbers and dims among the indices become int64 expressions.

    Raises: IRError.
    """
    if len(indices) != buffer.rank:
        raise IRError(
            f"buffer {buffer.name!r} has the wrong number of indices", found=len(indices), expected=buffer.rank
        )
    return Load(buffer, tuple(map(index, indices)))


def unary(op: str, x: Expr) -> Expr:
    """Return a checked `Unary`.

    Raises: IRError for an unknown operator or a dtype it does not take.
    """
    _check_operand(UNARY, op, x.dtype)
    return Unary(op, x)


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """Return a checked `Binary`; a number or dim on one side takes the other side's dtype.

    Raises: IRError for an unknown operator, different dtypes, or a dtype the operator does not take.
    """
    if not isinstance(a, Expr):
        a = const(a, b.dtype if isinstance(b, Expr) else INDEX)
    b = const(b, a.dtype)
    _check_operand(BINARY, op, a.dtype)
    return Binary(op, a, b)


def select(condition: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """Return a checked `Select`; a number on one side takes the other side's dtype.

    Raises: IRError.
    """
    if not isinstance(a, Expr):
        a = const(a, b.dtype if isinstance(b, Expr) else INDEX)
    if condition.dtype != "bool":
        raise IRError("a condition is a bool", found=condition.dtype)
    return Select(condition, a, const(b, a.dtype))


def cast(x: Expr, dtype: str) -> Expr:
    """Return `x` converted; `x` itself if it has the dtype."""
    return x if x.dtype == dtype else Cast(x, dtype)


def equal(a: ExprLike, b: ExprLike) -> Expr:
    """Return the operation `a == b`."""
    return binary("eq", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """Return the smaller of two values; NaN when one is NaN."""
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """Return the larger of two values; NaN when one is NaN."""
    return binary("max", a, b)


def _check_operand(table: dict[str, str], op: str, dtype: str) -> None:
    if op not in table:
        raise IRError(f"no scalar operator is called {op!r}", expected=", ".join(table))
    kind = "f" if dtypes.is_float(dtype) else "b" if dtype == "bool" else "wi" if dtype == "int32" else "i"
    if not set(kind) & set(table[op]):
        kinds = {"f": "floats", "i": "integers", "b": "bools"}
        raise IRError(f"{op} does not take {dtype}", expected=" or ".join(kinds[k] for k in table[op]))
