"""Bring the rows of a matrix product into their order before it, where they were permuted there already."""

from __future__ import annotations

from kernelyard.dims import Dim
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.ir.visitor import read_once
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import find_one_use_call, make

_MATRIX = 2


class HoistPermutations(FunctionPass):
    """`permute_dims(permute_dims(x) @ w + bias)` becomes `permute_dims(permute_dims(x)) @ w + bias`.

    The outer permutation is one of rows alone, `w` a constant matrix, the bias a constant vector or none; rows may be
    reshaped between. Each value has one reader. `canonicalize` then makes one permutation of the two, or none: in
    multi-head attention of PyTorch, whose last product has length before batch, and its result the other way around.
    """

    name = "hoist_permutations"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Hoister(function).mutate(function)


class _Hoister(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "permute_dims":
            return value
        axes, last = value.attrs["axes"], value.tensor_type.rank - 1
        found = self._find_product(value.args[0]) if last > 0 and axes[last] == last else None
        if found is None:
            return value
        product, bias = found
        x, weight = product.args
        rows = value.args[0].tensor_type.shape[:-1]
        rows_of_x = self.emit(make("reshape", x, shape=(*rows, x.tensor_type.shape[-1])), var.name, var.origin)
        permuted = self.emit(make("permute_dims", rows_of_x, axes=axes), var.name, var.origin)
        result = Call(product.op, [permuted, weight], product.attrs)
        return result if bias is None else make("add", self.emit(result, var.name, var.origin), bias)

    def _find_product(self, result: Expr) -> tuple[Call, Constant | None] | None:
        """Return the product of permuted rows that a value is, and the bias that was added; None if it is none."""
        width, bias = result.tensor_type.shape[-1], None
        call = self._before_reshapes(result)
        if call is not None and call.op_name == "add":
            bias = call.args[1]
            if not isinstance(bias, Constant) or bias.data.shape != (width,):
                return None
            call = self._before_reshapes(call.args[0])
        if call is None or call.op_name != "matmul" or not _is_matrix_of(call.args[1], width):
            return None
        source = self._before_reshapes(call.args[0])
        return (call, bias) if source is not None and source.op_name == "permute_dims" else None

    def _before_reshapes(self, expr: Expr) -> Call | None:
        """Return the call that a value is, or is a reshape of; None where somebody else reads one of them."""
        call = find_one_use_call(self, expr, self._read_once)
        while call is not None and call.op_name == "reshape":
            call = find_one_use_call(self, call.args[0], self._read_once)
        return call


def _is_matrix_of(weight: Expr, columns: Dim) -> bool:
    return isinstance(weight, Constant) and weight.data.ndim == _MATRIX and weight.data.shape[1] == columns
