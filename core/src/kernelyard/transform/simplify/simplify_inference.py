"""Replace operators that are written for training by what they compute at inference."""

from __future__ import annotations

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.transform.algebraic.channel_affine import affine_of_batch_norm, channel_constant
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext


class SimplifyInference(FunctionPass):
    """`nn.batch_norm(x, gamma, beta, mean, variance)` becomes `x * scale + shift`, per channel.

    The other norms stay whole, as libraries have them; `DecomposeOpsForInference` spells them out too.
    """

    name = "simplify_inference"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Simplifier().mutate(function)


class _Simplifier(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        is_norm = isinstance(value, Call) and value.op_name == "nn.batch_norm"
        return decompose_batch_norm(self, value) if is_norm else value  # pyright: ignore[reportArgumentType]


def decompose_batch_norm(mutator: FunctionMutator, call: Call) -> Expr:
    """Return `x * scale + shift`, with scale and shift folded where they are constant."""
    scale, shift = _fold_scale_and_shift(call) or _emit_scale_and_shift(mutator, call)
    return Call(get_op("add"), [_emit(mutator, "multiply", call.args[0], scale), shift])


def _fold_scale_and_shift(call: Call) -> tuple[Expr, Expr] | None:
    affine, type_ = affine_of_batch_norm(call), call.tensor_type
    if affine is None or affine.scale is None or affine.shift is None:
        return None
    axis = call.attrs["axis"]
    scale = channel_constant(affine.scale, type_.rank, axis, type_.dtype)
    return scale, channel_constant(affine.shift, type_.rank, axis, type_.dtype)


def _emit_scale_and_shift(mutator: FunctionMutator, call: Call) -> tuple[Expr, Expr]:
    """Emit scale = gamma / sqrt(variance + epsilon) and shift = beta - mean * scale."""
    _, gamma, beta, mean, variance = call.args
    epsilon = np.asarray(call.attrs["epsilon"]).astype(dtypes.to_numpy(variance.tensor_type.dtype))
    deviation = _emit(mutator, "sqrt", _emit(mutator, "add", variance, Constant(epsilon)))
    scale = _emit(mutator, "divide", gamma, deviation)
    shift = _emit(mutator, "subtract", beta, _emit(mutator, "multiply", mean, scale))
    return _reshape_along_channels(mutator, call, scale), _reshape_along_channels(mutator, call, shift)


def _reshape_along_channels(mutator: FunctionMutator, call: Call, vector: Expr) -> Expr:
    rank, axis = call.tensor_type.rank, call.attrs["axis"]
    shape = tuple(vector.tensor_type.shape[0] if i == axis else 1 for i in range(rank))
    return mutator.emit(Call(get_op("reshape"), [vector], {"shape": shape}))


def _emit(mutator: FunctionMutator, op: str, *operands: Expr) -> Expr:
    return mutator.emit(Call(get_op(op), operands))
