"""Zero points of the weights of convolutions, which oneDNN does not have, as a convolution of their own."""

from __future__ import annotations

import numpy as np

from kernelyard.plugins.api import (
    Call,
    Constant,
    Expr,
    Function,
    FunctionMutator,
    FunctionPass,
    IRModule,
    PassContext,
    Var,
    get_op,
)
from kernelyard_dnnl.nodes import stored, zero_point
from kernelyard_dnnl.primitive_kind import INTEGERS
from kernelyard_dnnl.primitives.integer_product import can_multiply_integers
from kernelyard_dnnl.primitives.winograd_choice import WINDOW

INT8 = np.iinfo(np.int8)
CONVOLUTIONS = tuple(f"nn.conv{rank}d" for rank in (1, 2, 3))


class SeparateZeroPoints(FunctionPass):
    """`conv(x, dequantize(w, s, z))` becomes `conv(x, dequantize(w, s, 0)) - conv(x, dequantize(z, s, 0))`.

    Where int8 holds weights less their zero points, they are stored so. Other asymmetric weights are then two products
    of integers for one of floats, which takes longer than both, unless Winograd's algorithm needs fewer
    multiplications. A bias is added before the second is subtracted, by the first convolution itself. The second has
    all channels, also where they are alike: oneDNN's kernels for integers subtract nothing that broadcasts along them.
    """

    name = "separate_zero_points"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        is_there = any(getattr(binding.value, "op_name", "") in CONVOLUTIONS for binding in function.bindings)
        return _Separator().mutate(function) if is_there and can_multiply_integers() else function


class _Separator(FunctionMutator):
    def __init__(self) -> None:
        super().__init__()
        self.separated: list[Expr] = []

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call):
            return value
        if value.op_name == "add":
            return self._with_bias(value)
        return self._convolution(value) if value.op_name in CONVOLUTIONS else value

    def _convolution(self, call: Call) -> Expr:
        data, decoder = (self.value_of(operand) for operand in call.args)
        if not _is_stored_data(data) or not isinstance(decoder, Call) or decoder.op_name != "dequantize":
            return call
        codes, scale, zero = stored(decoder.args[0]), decoder.args[1], zero_point(decoder)
        if not (isinstance(codes, Constant) and isinstance(scale, Constant) and isinstance(zero, Constant)):
            return call
        if codes.data.dtype != np.int8 or not zero.data.any() or decoder.attrs["axis"] not in (None, 0):
            return call
        points = zero.data.astype(np.int8).reshape(-1, *(1,) * (codes.data.ndim - 1))
        zeros = np.ascontiguousarray(np.broadcast_to(points, codes.data.shape))
        centred = codes.data.astype(np.int16) - zeros
        if INT8.min <= centred.min(initial=0) and centred.max(initial=0) <= INT8.max:
            return self._product(call, decoder, centred.astype(np.int8), scale)
        if _is_quick_in_floats(call, codes.data.shape):
            return call
        sides = [self._product(call, decoder, each, scale) for each in (codes.data, zeros)]
        made = _call("subtract", *map(self.emit, sides))
        self.separated.append(made)
        return made

    def _product(self, call: Call, decoder: Call, codes: np.ndarray, scale: Constant) -> Call:
        zero = Constant(np.zeros(scale.data.shape, np.int8))
        weight = Call(decoder.op, [Constant(codes), scale, zero], decoder.attrs)
        return Call(call.op, [call.args[0], self.emit(weight)], call.attrs)

    def _with_bias(self, call: Call) -> Expr:
        """Return a sum with a constant so that the constant is added before the correction."""
        for operand, bias in (call.args, call.args[::-1]):
            value = self.value_of(operand)
            if isinstance(bias, Constant) and isinstance(value, Call) and any(value is each for each in self.separated):
                product, correction = value.args
                return _call("subtract", self.emit(_call("add", product, bias)), correction)
        return call


def _is_stored_data(value: Expr) -> bool:
    """Return True for a dequantize of 8 bits that are computed, with one scale and one zero point."""
    if not isinstance(value, Call) or value.op_name != "dequantize" or isinstance(value.args[0], Constant):
        return False
    return value.args[0].tensor_type.dtype in INTEGERS and not any(each.tensor_type.rank for each in value.args[1:])


def _is_quick_in_floats(call: Call, weight: tuple[int, ...]) -> bool:
    """Return True for 3 x 3 windows that move one pixel at a time: Winograd's algorithm multiplies less than half."""
    steps = (*call.attrs["strides"], *call.attrs["dilation"], call.attrs["groups"])
    return len(weight) > 3 and weight[-2:] == (WINDOW, WINDOW) and all(step == 1 for step in steps)


def _call(op: str, *operands: Expr) -> Call:
    return Call(get_op(op), operands, {})
