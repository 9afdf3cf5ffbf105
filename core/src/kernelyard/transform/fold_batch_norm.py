"""Fold scales and shifts per channel into the constant weights and the bias of the linear operator before them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op, uses
from kernelyard.ir.visitor import result_vars
from kernelyard.transform.channel_affine import (
    ChannelAffine,
    channel_affine,
    channel_constant,
)
from kernelyard.transform.pass_base import FunctionPass, PassContext

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
TRANSPOSED = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")


class FoldBatchNorm(FunctionPass):
    """`linear(x, W) * scale + shift` becomes `linear(x, W * scale) + shift`.

    linear: convolutions, transposed convolutions and matrix products with constant weights, used once, with or without
    a bias. The scale and the shift may be a batch norm, or sums, differences, products and quotients with constants.
    """

    name = "fold_batch_norm"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Folder(function).mutate(function)


@dataclass(frozen=True)
class _Linear:
    """A linear operator's call, bound to `var`, and the constant that is added to its result, if any.

    `axis` is the output channel's, `channels` its size.
    """

    var: Expr
    call: Call
    weight: np.ndarray
    axis: int
    channels: int
    bias: np.ndarray | None = None


class _Folder(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        users = uses(function)
        results = set(result_vars(function))
        self._read_once = {var for var, bindings in users.items() if len(bindings) == 1 and var not in results}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not value.args:
            return value
        linear = self._linear_below(value)
        if linear is None:
            return value
        step = channel_affine(value, linear.axis, linear.channels)
        if step is None or (step.scale is None and linear.bias is None):
            return value
        return self._folded(linear, step, var.origin) or value

    def _folded(self, linear: _Linear, step: ChannelAffine, origin: str) -> Call | None:
        """Return the linear operator with the step folded in; None when the new weights would not be finite."""
        call, bias, product = linear.call, linear.bias, linear.var
        if step.scale is not None:
            weight = _scaled(linear, step.scale)
            if not np.all(np.isfinite(weight.astype(np.float64))):
                return None
            call = Call(call.op, [call.args[0], Constant(weight)], call.attrs, call.type)
            bias = None if bias is None else bias * step.scale
        if step.shift is not None:
            bias = step.shift if bias is None else bias + step.shift
        if bias is None:
            return call
        if step.scale is not None:
            product = self.emit(call, "folded", origin)
            assert isinstance(product, Var)
            self._read_once.add(product)
        type_ = call.tensor_type
        return Call(get_op("add"), [product, channel_constant(bias, type_.rank, linear.axis, type_.dtype)])

    def _linear_below(self, step: Call) -> _Linear | None:
        """Return the linear operator that a step is applied to, directly or with a bias between them."""
        for operand in step.args:
            call = self._private(operand)
            if call is None:
                continue
            linear = _as_linear(operand, call)
            if linear is not None:
                return linear
            with_bias = self._with_bias(call)
            if with_bias is not None:
                return with_bias
        return None

    def _with_bias(self, addition: Call) -> _Linear | None:
        if addition.op_name != "add":
            return None
        for operand in addition.args:
            call = self._private(operand)
            linear = _as_linear(operand, call) if call is not None else None
            bias = channel_affine(addition, linear.axis, linear.channels) if linear else None
            if linear and bias and bias.scale is None:
                return replace(linear, bias=bias.shift)
        return None

    def _private(self, operand: Expr) -> Call | None:
        """Return the call that a variable read nowhere else is bound to."""
        value = self.value_of(operand)
        return value if isinstance(value, Call) and operand in self._read_once else None


def _as_linear(var: Expr, call: Call) -> _Linear | None:
    if call.op_name not in ("matmul", *CONVOLUTIONS, *TRANSPOSED):
        return None
    weight = call.args[1]
    if not isinstance(weight, Constant) or not dtypes.is_float(call.tensor_type.dtype):
        return None
    if call.op_name == "matmul" and weight.data.ndim < 2:
        return None
    axis = call.tensor_type.rank - 1 if call.op_name == "matmul" else 1
    channels = call.tensor_type.shape[axis]
    return _Linear(var, call, weight.data, axis, channels) if isinstance(channels, int) else None


def _scaled(linear: _Linear, scale: np.ndarray) -> np.ndarray:
    """Return the weights times the scale of the output channel that each belongs to."""
    weight = linear.weight.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return _scaled_wide(linear.call, weight, scale).astype(linear.weight.dtype)


def _scaled_wide(call: Call, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if call.op_name == "matmul":
        return weight * scale
    if call.op_name in CONVOLUTIONS:
        return weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    # (I, O / groups, ...): the inputs of group g feed the outputs of group g.
    groups = call.attrs["groups"]
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    return (grouped * scale.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)
