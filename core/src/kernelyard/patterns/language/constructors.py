"""The words that patterns are written with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.dims import Dim
from kernelyard.errors import PatternError
from kernelyard.ir.expr import Expr
from kernelyard.ir.op import get_op
from kernelyard.patterns.language.pattern import (
    CallPattern,
    ConstantPattern,
    ExprPattern,
    ExternFuncPattern,
    FunctionPattern,
    GlobalVarPattern,
    Pattern,
    TupleGetItemPattern,
    TuplePattern,
    VarPattern,
    WildcardPattern,
    check_operands,
)
from kernelyard.patterns.op_checks import check_operand_count


@dataclass(frozen=True)
class OpPattern:
    """Names of ops, to be called with the patterns of their operands."""

    names: tuple[str, ...]

    def __call__(self, *args: Pattern, varargs: bool = False) -> Pattern:
        """Return a call of the op; `varargs`: operands beyond `args` are free.

        Raises: PatternError when an argument is not a pattern, and for a number of operands that none of the ops has.
        """
        operands = check_operands(args, "/".join(self.names))
        check_operand_count(self.names, len(args), varargs)
        return CallPattern(self.names, operands, varargs)


def wildcard() -> Pattern:
    """Match any value."""
    return WildcardPattern()


def is_var(name: str = "") -> Pattern:
    """Return a variable, that is any value but a constant; with `name`, one of exactly that name.

    Every variable of a function lives inside its one dataflow block, so there is no other kind to tell apart.
    """
    return VarPattern(name)


def is_expr(expr: Expr) -> Pattern:
    """Match exactly this operand; a constant of equal content is the same operand."""
    return ExprPattern(expr)


def is_gv(name: str = "") -> Pattern:
    """Return a GlobalVar, of exactly this name when one is given.

    Call it for calls of the function: `is_gv("f")(x)`.
    """
    return GlobalVarPattern(name)


def is_extern(symbol: str = "") -> Pattern:
    """Return an ExternFunc, of exactly this symbol when one is given."""
    return ExternFuncPattern(symbol)


def is_function(params: Sequence[Pattern], result: Pattern) -> Pattern:
    """Return a GlobalVar of a function whose parameters and result match; nothing inside it is captured.

    Matches only where the functions are known: `Matcher(function, module)`.
    """
    (result,) = check_operands((result,), "a function")
    return FunctionPattern(check_operands(tuple(params), "a function"), result)


def is_const(value: float | None = None, rtol: float = 1e-5) -> Pattern:
    """Return a constant; with `value`, one whose every element is that number within `rtol`."""
    return ConstantPattern(value, rtol)


def is_op(*names: str) -> OpPattern:
    """Return one of these ops; call the result with the patterns of its operands.

    Raises: PatternError for no name at all, UnknownOpError for one that is not in the vocabulary.

    Example:
        >>> pattern = is_op("add", "multiply")(wildcard(), is_const())
    """
    if not names:
        raise PatternError("is_op needs the name of an op", expected="for example is_op('nn.relu')")
    for name in names:
        get_op(name)
    return OpPattern(names)


def is_tuple(*fields: Pattern, unordered: bool = False) -> Pattern:
    """Return a tuple of these fields; `unordered`: in any order.

    Raises: PatternError when a field is not a pattern.
    """
    return TuplePattern(check_operands(fields, "a tuple"), unordered)


def is_tuple_get_item(tuple_value: Pattern, index: int | None = None) -> Pattern:
    """Match field `index` of a tuple value; None: any field."""
    (tuple_value,) = check_operands((tuple_value,), "a field")
    return TupleGetItemPattern(tuple_value, index)


def is_call_tir(function: Pattern | str = "", args: Sequence[Pattern] | None = None) -> Pattern:
    """Return a call of a loop-level function: its GlobalVar (a pattern, or the name), its operands (None: any)."""
    return _indirect_call("call_tir", function if isinstance(function, Pattern) else is_gv(function), args)


def is_call_dps_packed(function: Pattern | str = "", args: Sequence[Pattern] | None = None) -> Pattern:
    """Return a call of a function of a RuntimeModule: its ExternFunc (a pattern, or the symbol), its operands (None:
    any).
    """
    return _indirect_call("call_dps_packed", function if isinstance(function, Pattern) else is_extern(function), args)


def is_shape(*shape: Dim) -> Pattern:
    """Return a shape as a value, whose dims are provably these: what `shape_tensor` makes."""
    return is_op("shape_tensor")().has_attr(dims=shape)


def _indirect_call(op: str, function: Pattern, args: Sequence[Pattern] | None) -> Pattern:
    return is_op(op)(function, *(args or ()), varargs=args is None)
