"""Bring the numbers that operands of a matrix product are multiplied by together, where they cost least."""

from __future__ import annotations

from math import prod

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.ir.visitor import read_once
from kernelyard.patterns.dequantized import is_dequantized
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import defining_call, uniform_value

# 16-bit scales stay where they are: where each product is rounded is part of what a model says.
_DTYPES = ("float32", "float64")


class CombineScales(FunctionPass):
    """`matmul(x * a, y * b)` becomes `matmul(x * (a * b), y)`, or `matmul(x, y * (a * b))` where y is smaller.

    a, b: scalars, as decomposed attention has them on queries and on keys. One alone moves to the other operand where
    that has fewer elements. The larger operand is then as it was made, often a transposed copy that the matmul can do
    without. Scaled operands with other users stay, and so do scalars whose product is no normal number, 16-bit scalars,
    and scales of quantized weights: kernels dequantize those on the way.
    """

    name = "combine_scales"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Gatherer(function).mutate(function)


class _Gatherer(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "matmul":
            return value
        dtype = value.args[0].tensor_type.dtype
        if dtype not in _DTYPES or any(is_dequantized(operand, self.value_of) for operand in value.args):
            return value
        (x, a), (y, b) = map(self._split_scale, value.args)
        place = _smaller_operand(x, y) if a is None or b is None else int(_is_smaller(y, x))
        if place is None or (a, b)[1 - place] is None:
            return value
        scale = _product_of(a, b, dtype)
        if scale is None:
            return value
        operands = [x, y]
        operands[place] = self.emit(Call(get_op("multiply"), [operands[place], scale], {}), var.name, var.origin)
        return Call(value.op, operands, value.attrs)

    def _split_scale(self, operand: Expr) -> tuple[Expr, np.generic | None]:
        """Split a product with a scalar constant into operand and scale; the scale is None for all else."""
        call = defining_call(self, operand, "multiply") if operand in self._read_once else None
        number = uniform_value(call.args[1]) if call else None
        if call is None or number is None or call.args[0].type != call.type:
            return operand, None
        return call.args[0], number


def _smaller_operand(x: Expr, y: Expr) -> int | None:
    """Return the position of the operand that is known to have fewer elements; None for neither."""
    return 0 if _is_smaller(x, y) else 1 if _is_smaller(y, x) else None


def _is_smaller(x: Expr, y: Expr) -> bool:
    """Return True where x is known to have fewer elements than y."""
    few, many = x.tensor_type.numel, y.tensor_type.numel
    return isinstance(few, int) and isinstance(many, int) and few < many


def _product_of(a: np.generic | None, b: np.generic | None, dtype: str) -> Constant | None:
    """Return the product of the given scales as one constant; None if it is zero, subnormal or infinite."""
    product = prod(float(number) for number in (a, b) if number is not None)
    limits = np.finfo(dtypes.to_numpy(dtype))
    is_normal = float(limits.smallest_normal) <= abs(product) <= float(limits.max)
    return Constant(np.asarray(product, dtypes.to_numpy(dtype))) if is_normal else None
