"""Bring bias, activation and residual next to their matrix product, where a reshape stands between them."""

from __future__ import annotations

import numpy as np

from kernelyard.dims import Shape
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Op, TensorType, Var, get_op
from kernelyard.ir.visitor import read_once
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext


class SinkReshape(FunctionPass):
    """`epilogue(reshape(matmul(x, w)))` becomes `reshape(epilogue(matmul(x, w)))`.

    epilogue: elementwise operators one after the other, each the only reader of the one before. Their other operands
    are scalars, vectors along a last axis that the reshape keeps, or whole tensors, which are reshaped the other way.
    """

    name = "sink_reshape"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Sinker(function).mutate(function)


class _Sinker(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)
        self._products: set[Expr] = set()
        self._behind: dict[Expr, Var] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op) or not isinstance(value.type, TensorType):
            return value
        if value.op_name == "matmul" and var in self._read_once:
            self._products.add(var)
        elif value.op_name == "reshape":
            self._sink(var, value.args[0])
        elif value.op_name in ELEMENTWISE:
            sunk = self._sunk(var, value, value.type)
            if sunk is not None:
                self._sink(var, sunk.args[0])
                return sunk
        return value

    def _sink(self, var: Var, product: Expr) -> None:
        if isinstance(product, Var) and product in self._products and var in self._read_once:
            self._behind[var] = product

    def _sunk(self, var: Var, call: Call, type_: TensorType) -> Call | None:
        """Return the reshape of the call on what lies behind the reshape that it reads; None where it reads none."""
        reshaped = next((arg for arg in call.args if arg in self._behind and _shape(arg) == type_.shape), None)
        if reshaped is None:
            return None
        inner = _shape(self._behind[reshaped])
        operands = [self._move_reshape(arg, type_.shape, inner) for arg in call.args]
        moved = [operand for operand in operands if operand is not None]
        if len(moved) != len(operands):
            return None
        product = self.emit(Call(call.op, moved, call.attrs), var.name, var.origin)
        self._products.add(product)
        return _reshape(product, type_.shape)

    def _move_reshape(self, operand: Expr, outer: Shape, inner: Shape) -> Expr | None:
        """Return the operand for a result of shape `inner`; None if there is none."""
        shape = _shape(operand)
        if operand in self._behind and _shape(self._behind[operand]) == inner:
            return self._behind[operand]
        if not shape:
            return operand
        if shape == outer:
            return self.emit(_reshape(operand, inner))
        if any(size != 1 for size in shape[:-1]) or shape[-1] not in (1, outer[-1]):
            return None
        if shape[-1] != 1 and (not inner or inner[-1] != outer[-1]):
            return None
        return operand if len(shape) == 1 else self._flat(operand)

    def _flat(self, vector: Expr) -> Expr:
        if isinstance(vector, Constant):
            return Constant(np.ascontiguousarray(vector.data.reshape(-1)))
        return self.emit(_reshape(vector, _shape(vector)[-1:]))


def _shape(expr: Expr) -> Shape:
    return expr.tensor_type.shape


def _reshape(operand: Expr, shape: Shape) -> Call:
    return Call(get_op("reshape"), [operand], {"shape": shape})
