"""Widen images of few channels, such as photographs, to as many as targets copy at once."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kernelyard.ir import Call, Constant, Expr, FunctionMutator, IRModule, TensorType, Var
from kernelyard.legalize.registry import RuleBuilder
from kernelyard.tir.expr import Axis, const, index, select
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.layout.convert_layout import CONVOLUTIONS
from kernelyard.transform.lowering.legalize_ops import PrimFuncTable, call_tir, mutate_with_prim_funcs
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class WidenChannels(Pass):
    """Give images of convolutions, and filters, zeros behind their channels, where there are fewer than `channels`.

    dtypes: of the convolutions. Neighbouring channels of a channels-last image are copied at once where their bytes are
    4, 8 or 16. The copy of an image is one function, into which `FuseOps` fuses its permutation.
    """

    name = "widen_channels"

    def __init__(self, channels: int, dtypes: Collection[str]) -> None:
        self.channels = channels
        self.dtypes = frozenset(dtypes)

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return mutate_with_prim_funcs(module, lambda functions: _Widener(functions, self.channels, self.dtypes))


class _Widener(FunctionMutator):
    def __init__(self, functions: PrimFuncTable, channels: int, dtypes: frozenset[str]) -> None:
        super().__init__()
        self.functions = functions
        self.channels = channels
        self.dtypes = dtypes

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in CONVOLUTIONS or value.attrs["groups"] != 1:
            return value
        has = value.args[1].tensor_type.shape[1]
        if not isinstance(has, int) or has >= self.channels or value.tensor_type.dtype not in self.dtypes:
            return value
        return Call(value.op, [self._widen(operand, has) for operand in value.args], value.attrs)

    def _widen(self, operand: Expr, has: int) -> Expr:
        if isinstance(operand, Constant):
            missing = [(0, self.channels - has if axis == 1 else 0) for axis in range(operand.data.ndim)]
            return Constant(np.pad(operand.data, missing))
        function = _with_zeros_behind(operand.tensor_type, has, self.channels)
        (type_,) = (TensorType(buffer.shape, buffer.dtype) for buffer in function.outputs)
        return self.emit(call_tir(self.functions.name_of(function, "widen_channels"), [operand], type_))


def _with_zeros_behind(type_: TensorType, has: int, channels: int) -> PrimFunc:
    """Return the function that gives a tensor more channels, which are its second dim."""
    shape = (type_.shape[0], channels, *type_.shape[2:])
    b = RuleBuilder((TensorType(shape, type_.dtype),))
    x = b.input("in0", type_)

    def element(*at: Axis) -> ScalarExpr:
        return select(at[1] < index(has), x[at], const(0, type_.dtype))

    return b.finish((b.compute(shape, element),), {"ops": ("pad",)})
