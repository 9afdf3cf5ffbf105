"""Fold scales per channel into constant weights, also from further away: before the linear operator, behind a ReLU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op, with_operands
from kernelyard.ir.visitor import read_once
from kernelyard.transform.algebraic.channel_affine import (
    STEPS,
    Linear,
    as_linear,
    channel_affine,
    channel_constant,
    channel_vector,
)
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import find_one_use_call

# f(x * s) == f(x) * s, for any s of a channel, and for s >= 0.
LINEAR_POOLS = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
POSITIVELY_HOMOGENEOUS = ("nn.relu", "nn.leaky_relu", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
# Numbers of 16 bits stay as they are spelled: where each product is rounded is part of what a model says.
_DTYPES = ("float32", "float64")
# Weights and values of float32 keep their digits under scales up to this, and down to its inverse.
_LARGEST = 2.0**40

Emission: TypeAlias = Callable[[], Expr]  # binds a chain that is known to be possible


class FoldScaleAxis(FunctionPass):
    """`linear(relu(x * s + t), W)` becomes `linear(relu(x + t / s), W * s)`, `relu(linear(x, W) + b) * s` becomes
    `relu(linear(x, W * s) + b * s)`.

    linear: convolutions, transposed convolutions and matrix products with constant weights. Between scale and operator
    there may be average pools, permutations and reshapes that keep channels together, sums with constants, and (behind
    the operator) with other such chains; where no scale is negative, also ReLU, leaky ReLU and max pools. Values and
    weights that have other readers stay, and so do numbers of 16 bits and scales beyond 2**40.

    Source: the passes ForwardFoldScaleAxis and BackwardFoldScaleAxis of TVM's Relay.

    Example:
        >>> import numpy as np, kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder, IRModule
        >>> b = FunctionBuilder()
        >>> product = b.op("matmul", b.input("x", (2, 2)), np.ones((2, 2), np.float32))
        >>> module = IRModule({"main": b.function(b.op("multiply", b.op("nn.relu", product), np.float32([2, 3])))})
        >>> FoldScaleAxis()(module)["main"].bindings[-2].value.args[1].data.tolist()
        [[2.0, 3.0], [2.0, 3.0]]
    """

    name = "fold_scale_axis"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Folder(function).mutate(function)


class _Unscaled(NamedTuple):
    """A value as `emission() * scale`: one float64 number for each channel of an axis."""

    scale: np.ndarray
    emission: Emission


class _Folder(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)
        operands_of_calls = [o for b in function.bindings if isinstance(b.value, Call) for o in b.value.args]
        self._readers = Counter(_address(o) for o in operands_of_calls if isinstance(o, Constant))

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call):
            return value
        linear = self._linear(value)
        return self._fold_forward(linear) if linear is not None else self._fold_backward(value)

    # --- forward: a scale before the linear operator ------------------------------------------------------------------
    def _fold_forward(self, linear: Linear) -> Call:
        """Return the linear operator's call, with the scales of what it reads in its weights."""
        while (found := self._split_scale(linear.call.args[0], linear.input_axis, linear.input_channels)) is not None:
            call = linear.scaling_inputs(found.scale)
            if call is None:
                break
            x, weight = found.emission(), call.args[1]
            assert isinstance(weight, Constant)
            linear = replace(linear, call=Call(call.op, [x, weight], call.attrs), weight=weight.data)
        return linear.call

    def _split_scale(self, x: Expr, axis: int, channels: int) -> _Unscaled | None:
        value = find_one_use_call(self, x, self._read_once)
        if value is None:
            return None
        step = channel_affine(value, axis, channels)
        if step is not None and step.scale is not None:
            found = _Unscaled(step.scale, lambda: step.x) if _is_moderate(step.scale) else None
            return self._add_shift(found, step.shift, x, axis)
        if step is not None:
            return self._add_shift(self._split_scale(step.x, axis, channels), step.shift, x, axis)
        carried = _trace_channels(value, axis)
        if carried is None:
            return None
        inner_axis, repeats = carried
        inner = self._split_scale(value.args[0], inner_axis, channels // repeats)
        if inner is None or not _commutes(value, inner.scale):
            return None
        return _Unscaled(
            np.repeat(inner.scale, repeats), lambda: self._bind(with_operands(value, [inner.emission()]), x)
        )

    def _add_shift(self, found: _Unscaled | None, shift: np.ndarray | None, x: Expr, axis: int) -> _Unscaled | None:
        """Return `found` with `shift` added to it: `y * scale + shift` is `(y + shift / scale) * scale`."""
        if found is None or shift is None:
            return found
        if not np.all(found.scale):
            return None
        type_ = x.tensor_type
        quotient = channel_constant(shift / found.scale, type_.rank, axis, type_.dtype)
        if not np.all(np.isfinite(quotient.data)):
            return None
        return _Unscaled(found.scale, lambda: self._bind(Call(get_op("add"), [found.emission(), quotient]), x))

    # --- backward: a scale behind the linear operator -----------------------------------------------------------------
    def _fold_backward(self, value: Call) -> Expr:
        """Return what gives `value` with its scale in the weights before it, or `value`."""
        if value.op_name not in STEPS:
            return value
        for axis, channels in enumerate(value.tensor_type.shape):
            step = channel_affine(value, axis, channels) if isinstance(channels, int) else None
            if step is None or step.scale is None or not _is_moderate(step.scale):
                continue
            emission = self._push_scale(step.x, step.scale, axis)
            if emission is not None and step.shift is None:
                return emission()
            if emission is not None and step.shift is not None:
                type_ = value.tensor_type
                shift = channel_constant(step.shift, type_.rank, axis, type_.dtype)
                return Call(get_op("add"), [emission(), shift])
        return value

    def _push_scale(self, x: Expr, scale: np.ndarray, axis: int) -> Emission | None:
        """Return how to bind `x * scale` without a product; None where there is no way."""
        value = find_one_use_call(self, x, self._read_once)
        if value is None:
            return None
        linear = self._linear(value)
        if linear is not None:
            call = linear.scaling_outputs(scale) if axis == linear.axis else None
            return None if call is None else lambda: self._bind(call, x)
        if value.op_name in ("add", "subtract"):
            return self._push_scale_into_sum(value, x, scale, axis)
        carried = _trace_channels(value, axis)
        if carried is None or carried[1] != 1 or not _commutes(value, scale):
            return None
        inner = self._push_scale(value.args[0], scale, carried[0])
        return None if inner is None else lambda: self._bind(with_operands(value, [inner()]), x)

    def _push_scale_into_sum(self, value: Call, x: Expr, scale: np.ndarray, axis: int) -> Emission | None:
        left, right = (self._push_scale_into_addend(operand, value, scale, axis) for operand in value.args)
        if left is None or right is None or value.args[0] is value.args[1]:
            return None
        return lambda: self._bind(with_operands(value, [left(), right()]), x)

    def _push_scale_into_addend(self, operand: Expr, addition: Call, scale: np.ndarray, axis: int) -> Emission | None:
        if not isinstance(operand, Constant):
            return self._push_scale(operand, scale, axis) if operand.type == addition.type else None
        type_ = addition.tensor_type
        vector = channel_vector(operand.data, type_.rank, axis, len(scale))
        if vector is None:
            return None
        constant = channel_constant(vector * scale, type_.rank, axis, type_.dtype)
        return (lambda: constant) if np.all(np.isfinite(constant.data)) else None

    # --- both ---------------------------------------------------------------------------------------------------------
    def _linear(self, value: Call) -> Linear | None:
        """Match `value` as a linear operator whose weights nobody else reads."""
        linear = as_linear(value)
        if linear is None or value.tensor_type.dtype not in _DTYPES:
            return None
        return linear if self._readers[_address(value.args[1])] <= 1 else None

    def _bind(self, value: Expr, as_: Expr) -> Expr:
        """Bind what takes the place of the variable `as_`."""
        assert isinstance(as_, Var)
        var = self.emit(value, as_.name, as_.origin)
        assert isinstance(var, Var)
        self._read_once.add(var)
        return var


def _address(constant: Expr) -> int:
    """Return where a constant lies: two may be views of the same weights."""
    assert isinstance(constant, Constant)
    return constant.data.__array_interface__["data"][0]


def _is_moderate(scale: np.ndarray) -> bool:
    size = np.abs(scale)
    return bool(np.all((size == 0) | ((size >= 1 / _LARGEST) & (size <= _LARGEST))))


def _commutes(call: Call, scale: np.ndarray) -> bool:
    """Return True where an operator gives `f(x) * scale` for `x * scale`, when channels stay what they are."""
    return call.op_name not in POSITIVELY_HOMOGENEOUS or bool(np.all(scale >= 0))


def _trace_channels(call: Call, axis: int) -> tuple[int, int] | None:
    """Return the axis of the operand whose channels `axis` of the result has, and how often in a row it has each.

    None for operators that mix channels or are not homogeneous.
    """
    if call.op_name in (*LINEAR_POOLS, *POSITIVELY_HOMOGENEOUS):
        return axis, 1
    if call.op_name == "permute_dims":
        return call.attrs["axes"][axis], 1
    if call.op_name != "reshape":
        return None
    before, after = call.args[0].tensor_type.shape, call.tensor_type.shape
    if axis >= len(before) or before[:axis] != after[:axis]:
        return None
    size, whole = before[axis], after[axis]
    if size == whole:
        return axis, 1
    if axis < len(after) - 1 or not isinstance(size, int) or not isinstance(whole, int) or not size or whole % size:
        return None
    return axis, whole // size
