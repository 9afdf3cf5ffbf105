"""ShareDequantize: products of the same numbers read one dequantized tensor."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.patterns.dequantized import PRODUCTS
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext


class ShareDequantize(FunctionPass):
    """Have products that no backend took read one dequantize of the same numbers, unlike elementwise kernels: they do
    not dequantize on the way."""

    name = "share_dequantize"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        is_there = any(getattr(binding.value, "op_name", "") == "dequantize" for binding in function.bindings)
        return _Sharer().mutate(function) if is_there else function


class _Sharer(FunctionMutator):
    def __init__(self) -> None:
        super().__init__()
        self._first: dict[tuple[object, ...], Expr] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in PRODUCTS:
            return value
        shared = [self._share(operand) for operand in value.args]
        is_same = all(new is old for new, old in zip(shared, value.args, strict=True))
        return value if is_same else Call(value.op, shared, value.attrs)

    def _share(self, operand: Expr) -> Expr:
        read = self.value_of(operand)
        if not isinstance(read, Call) or read.op_name != "dequantize":
            return operand
        key = (*map(id, read.args), read.attrs["axis"], read.attrs["dtype"])
        return self._first.setdefault(key, operand)
