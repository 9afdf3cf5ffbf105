"""Replace operators that are written for training by what they compute at inference."""

from __future__ import annotations

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.transform.channel_affine import affine_of_batch_norm, channel_constant
from kernelyard.transform.pass_base import FunctionPass, PassContext


class SimplifyInference(FunctionPass):
    """`nn.batch_norm(x, gamma, beta, mean, variance)` becomes `x * scale + shift`, per channel."""

    name = "simplify_inference"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Simplifier().mutate(function)


class _Simplifier(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "nn.batch_norm":
            return value
        scale, shift = self._known(value) or self._computed(value)
        return Call(get_op("add"), [self._bound("multiply", value.args[0], scale), shift])

    def _known(self, call: Call) -> tuple[Expr, Expr] | None:
        affine, type_ = affine_of_batch_norm(call), call.tensor_type
        if affine is None or affine.scale is None or affine.shift is None:
            return None
        axis = call.attrs["axis"]
        scale = channel_constant(affine.scale, type_.rank, axis, type_.dtype)
        return scale, channel_constant(affine.shift, type_.rank, axis, type_.dtype)

    def _computed(self, call: Call) -> tuple[Expr, Expr]:
        """scale = gamma / sqrt(variance + epsilon) and shift = beta - mean * scale, as bindings."""
        _, gamma, beta, mean, variance = call.args
        epsilon = np.asarray(call.attrs["epsilon"]).astype(dtypes.to_numpy(variance.tensor_type.dtype))
        deviation = self._bound("sqrt", self._bound("add", variance, Constant(epsilon)))
        scale = self._bound("divide", gamma, deviation)
        shift = self._bound("subtract", beta, self._bound("multiply", mean, scale))
        return self._along(call, scale), self._along(call, shift)

    def _along(self, call: Call, vector: Expr) -> Expr:
        rank, axis = call.tensor_type.rank, call.attrs["axis"]
        shape = tuple(vector.tensor_type.shape[0] if i == axis else 1 for i in range(rank))
        return self.emit(Call(get_op("reshape"), [vector], {"shape": shape}))

    def _bound(self, op: str, *operands: Expr) -> Expr:
        return self.emit(Call(get_op(op), operands))
