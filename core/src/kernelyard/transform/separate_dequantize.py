"""Give each reader a dequantize of its own, for backends that compute with integers; and share it where none does."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Var, with_operands
from kernelyard.ir.expr import operands
from kernelyard.ir.visitor import read_once, result_vars
from kernelyard.patterns.decoded import PRODUCTS
from kernelyard.transform.pass_base import FunctionPass, PassContext


class SeparateDequantize(FunctionPass):
    """A dequantize that several operators read becomes one for each: a group may take it in without the others.

    Generated kernels dequantize in registers, so that the repetition costs nothing.
    """

    name = "separate_dequantize"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Separator(function).mutate(function) if _dequantizes(function) else function


class ShareDequantize(FunctionPass):
    """Products that were left to kernels read one dequantize of the same numbers; they do not do it on the way."""

    name = "share_dequantize"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Sharer().mutate(function) if _dequantizes(function) else function


def _dequantizes(function: Function) -> bool:
    return any(getattr(binding.value, "op_name", "") == "dequantize" for binding in function.bindings)


class _Separator(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._alone = read_once(function)
        self._taken: set[Expr] = set(result_vars(function))

    def rewrite(self, var: Var, value: Expr) -> Expr:
        own = {}
        for operand in operands(value):
            read = self.value_of(operand)
            if operand in self._alone or not isinstance(read, Call) or read.op_name != "dequantize":
                continue
            if operand not in self._taken:
                self._taken.add(operand)
            elif operand not in own and isinstance(operand, Var):
                own[operand] = self.emit(Call(read.op, read.args, read.attrs), operand.name, operand.origin)
        return with_operands(value, [own.get(operand, operand) for operand in operands(value)]) if own else value


class _Sharer(FunctionMutator):
    def __init__(self) -> None:
        super().__init__()
        self._first: dict[tuple[object, ...], Expr] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in PRODUCTS:
            return value
        shared = [self._shared(operand) for operand in value.args]
        is_same = all(new is old for new, old in zip(shared, value.args, strict=True))
        return value if is_same else Call(value.op, shared, value.attrs)

    def _shared(self, operand: Expr) -> Expr:
        read = self.value_of(operand)
        if not isinstance(read, Call) or read.op_name != "dequantize":
            return operand
        key = (*map(id, read.args), read.attrs["axis"], read.attrs["dtype"])
        return self._first.setdefault(key, operand)
