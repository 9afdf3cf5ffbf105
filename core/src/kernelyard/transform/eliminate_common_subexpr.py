"""Compute equal values once: the same operator or function, operands and attributes give the same result."""

from __future__ import annotations

from collections.abc import Hashable

from kernelyard.ir import (
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    FunctionMutator,
    GlobalVar,
    IRModule,
    TupleGetItem,
    Var,
    operands,
)
from kernelyard.ir.op import Op
from kernelyard.ir.purity import Purity
from kernelyard.transform.pass_base import FunctionPass, PassContext


class EliminateCommonSubexpr(FunctionPass):
    """Replace a value by an equal one that was bound before; operands of commutative operators may be swapped."""

    name = "eliminate_common_subexpr"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Eliminator(Purity(module)).mutate(function)


class _Eliminator(FunctionMutator):
    def __init__(self, purity: Purity) -> None:
        super().__init__()
        self._purity = purity
        self._known: dict[Hashable, Var] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, (Call, TupleGetItem)) or not self._purity.is_pure(value):
            return value
        key = (type(value), _head(value), _operand_keys(value), value.type)
        known = self._known.setdefault(key, var)
        return value if known is var else known


def _head(value: Call | TupleGetItem) -> Hashable:
    if isinstance(value, TupleGetItem):
        return value.index
    # Attribute values are compared as they are written: 1, 1.0 and True are different, and so are 0.0 and -0.0.
    return (type(value.op), value.op.name, tuple((name, repr(item)) for name, item in value.attrs.items()))


def _operand_keys(value: Expr) -> tuple[Hashable, ...]:
    keys = [_operand_key(operand) for operand in operands(value)]
    if isinstance(value, Call) and isinstance(value.op, Op) and value.op.commutative:
        keys.sort(key=repr)
    return tuple(keys)


def _operand_key(operand: Expr) -> tuple[str, Hashable]:
    if isinstance(operand, Constant):
        return ("constant", operand.digest)
    if isinstance(operand, GlobalVar):
        return ("function", operand.name)
    if isinstance(operand, ExternFunc):
        return ("extern", operand.symbol)
    return ("value", id(operand))
