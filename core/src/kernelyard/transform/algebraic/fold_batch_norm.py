"""Fold scales and shifts per channel into the constant weights and the bias of the linear operator before them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.ir.visitor import read_once
from kernelyard.transform.algebraic.channel_affine import (
    ChannelAffine,
    Linear,
    as_linear,
    channel_affine,
    channel_constant,
)
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import find_one_use_call


class FoldBatchNorm(FunctionPass):
    """`linear(x, W) * scale + shift` becomes `linear(x, W * scale) + shift`.

    linear: convolutions, transposed convolutions and matrix products with constant weights, used once, with or without
    a bias. The scale and the shift may be a batch norm, or sums, differences, products and quotients with constants.
    """

    name = "fold_batch_norm"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Folder(function).mutate(function)


@dataclass(frozen=True)
class _Biased:
    """A linear operator, bound to `var`, and what is added to its result, if anything: a number for each channel."""

    var: Expr
    linear: Linear
    bias: np.ndarray | None = None


class _Folder(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not value.args:
            return value
        biased = self._linear_below(value)
        if biased is None:
            return value
        step = channel_affine(value, biased.linear.axis, biased.linear.channels)
        if step is None or (step.scale is None and biased.bias is None):
            return value
        return self._fold_step(biased, step, var.origin) or value

    def _fold_step(self, biased: _Biased, step: ChannelAffine, origin: str) -> Call | None:
        """Return the linear operator with the step folded in; None when the new weights would not be finite."""
        call, bias, product = biased.linear.call, biased.bias, biased.var
        if step.scale is not None:
            scaled = biased.linear.scaling_outputs(step.scale)
            if scaled is None:
                return None
            call = scaled
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
        return Call(get_op("add"), [product, channel_constant(bias, type_.rank, biased.linear.axis, type_.dtype)])

    def _linear_below(self, step: Call) -> _Biased | None:
        """Return the linear operator that a step is applied to, directly or with a bias between them."""
        for operand in step.args:
            call = find_one_use_call(self, operand, self._read_once)
            if call is None:
                continue
            linear = as_linear(call)
            if linear is not None:
                return _Biased(operand, linear)
            with_bias = self._with_bias(call)
            if with_bias is not None:
                return with_bias
        return None

    def _with_bias(self, addition: Call) -> _Biased | None:
        if addition.op_name != "add":
            return None
        for operand in addition.args:
            call = find_one_use_call(self, operand, self._read_once)
            linear = as_linear(call) if call is not None else None
            bias = channel_affine(addition, linear.axis, linear.channels) if linear else None
            if linear and bias and bias.scale is None:
                return _Biased(operand, linear, bias.shift)
        return None
