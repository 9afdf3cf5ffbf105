"""Compute no pixel that nobody reads: strides of pointwise convolutions move to what computes their images.

A convolution of 1 x 1 with a stride reads every s-th pixel alone. Where all readers of an image do (the shrinking
blocks of ResNet v1 are built so), the convolution that made it may take the stride over: sums and activations between
them are computed for these pixels only, and a residual is sliced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

from kernelyard.ir import Binding, Call, Expr, Function, IRModule, Op, TensorType, Var, get_op, operands
from kernelyard.ir.visitor import result_vars
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

Strides: TypeAlias = tuple[int, ...]

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
POOLS = tuple(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3))


class HoistStrides(FunctionPass):
    """`conv1x1(f(conv(x)), strides=2)` becomes `conv1x1(f(conv(x, strides=2)))`, where nobody needs the other pixels.

    f: elementwise operators; whole images among their other operands become slices. Pools take strides over as
    convolutions do. Spatial sizes must be known.
    """

    name = "hoist_strides"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        wanted = _find_wanted_strides(function)
        return _Hoister(wanted).run(function) if wanted else function


def _find_wanted_strides(function: Function) -> dict[Var, Strides]:
    """Return the strides s, by spatial axis, of values of which all readers want every s-th pixel alone."""
    found: dict[Var, Strides] = {}
    whole = set(result_vars(function))
    for binding in reversed(function.bindings):
        own = found.get(binding.var) if binding.var not in whole else None
        for operand in dict.fromkeys(operands(binding.value)):
            if not isinstance(operand, Var):
                continue
            strides = _read(binding.value, operand, own)
            if strides is None:
                whole.add(operand)
            else:
                found[operand] = tuple(map(math.gcd, strides, found.get(operand, strides)))
    return {var: strides for var, strides in found.items() if var not in whole and any(s > 1 for s in strides)}


def _read(value: Expr, operand: Var, own: Strides | None) -> Strides | None:
    """Return the strides at which a value reads its operand if every `own`-th of its pixels is read; None for all."""
    if not _is_operator(value) or not _is_image(value) or not _is_image(operand):
        return None
    if value.op_name in CONVOLUTIONS and value.args[1] is not operand and _is_pointwise(value):
        return _times(value.attrs["strides"], own)
    if value.op_name in ELEMENTWISE and _sizes(operand) == _sizes(value):
        return own
    return None


def _is_operator(value: Expr) -> TypeGuard[Call]:
    return isinstance(value, Call) and isinstance(value.op, Op)


def _is_image(expr: Expr) -> bool:
    """Return True for a tensor with spatial axes of known sizes."""
    type_ = expr.type
    return isinstance(type_, TensorType) and type_.rank > 2 and all(isinstance(size, int) for size in type_.shape[2:])


def _is_pointwise(convolution: Call) -> bool:
    kernel = convolution.args[1].tensor_type.shape[2:]
    return all(size == 1 for size in kernel) and not any(convolution.attrs["padding"])


def _sizes(image: Expr) -> Sequence[object]:
    return image.tensor_type.shape[2:]


def _times(left: Strides, right: Strides | None) -> Strides:
    return left if right is None else tuple(a * b for a, b in zip(left, right, strict=True))


class _Hoister:
    """Every s-th pixel of a value is made where a convolution or a pool can make them alone."""

    def __init__(self, wanted: dict[Var, Strides]) -> None:
        self._wanted = wanted
        self._bindings: list[Binding] = []
        self._thinned: dict[Expr, Var] = {}

    def run(self, function: Function) -> Function:
        for binding in function.bindings:
            var, wanted = binding.var, self._wanted.get(binding.var)
            call = self._rewrite_call(binding.value, wanted)
            if call is None:
                self._bindings.append(binding)
            elif wanted is None:
                self._bindings.append(Binding(var, call))
            else:
                self._thinned[var] = self._bind(call, var)
        if all(new is old for new, old in zip(self._bindings, function.bindings, strict=False)):
            return function
        return Function(function.params, self._bindings, function.result, function.attrs)

    def _rewrite_call(self, value: Expr, wanted: Strides | None) -> Call | None:
        """Return the call that makes the wanted pixels alone, or reads an image that has no others.

        None for any other.
        """
        if not _is_operator(value):
            return None
        is_window = value.op_name in CONVOLUTIONS or (value.op_name in POOLS and not value.attrs["ceil_mode"])
        if is_window and (wanted or value.args[0] in self._thinned):
            strides = _times(value.attrs["strides"], wanted)
            done = self._strides(value.args[0], len(strides))
            attrs = {**value.attrs, "strides": tuple(a // b for a, b in zip(strides, done, strict=True))}
            return Call(value.op, [self._thinned.get(value.args[0], value.args[0]), *value.args[1:]], attrs)
        if wanted and value.op_name in ELEMENTWISE and any(arg in self._thinned for arg in value.args):
            return Call(value.op, [self._thin(arg, wanted) for arg in value.args], value.attrs)
        return None

    def _strides(self, operand: Expr, rank: int) -> Strides:
        """Return the strides at which an image of the new function samples the old one."""
        return self._wanted[operand] if isinstance(operand, Var) and operand in self._thinned else (1,) * rank

    def _thin(self, operand: Expr, wanted: Strides) -> Expr:
        """Return every `wanted`-th pixel of an operand that broadcasts to an image."""
        done = self._strides(operand, len(wanted))
        operand = self._thinned.get(operand, operand)
        shape = operand.tensor_type.shape
        steps = {
            axis: step // before
            for axis, step, before in zip(range(len(shape) - len(wanted), len(shape)), wanted, done, strict=True)
            if axis >= 0 and shape[axis] != 1 and step != before
        }
        if not steps:
            return operand
        ends = tuple(shape[axis] for axis in steps)
        attrs = {"axes": tuple(steps), "begin": (0,) * len(steps), "end": ends, "strides": tuple(steps.values())}
        return self._bind(Call(get_op("strided_slice"), [operand], attrs))

    def _bind(self, call: Call, like: Var | None = None) -> Var:
        var = Var(like.name, call.type, like.origin) if like else Var("lv", call.type)
        self._bindings.append(Binding(var, call))
        return var
