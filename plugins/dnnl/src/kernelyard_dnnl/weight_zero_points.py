"""Zero points of weights that oneDNN does not have, those of convolutions and several of a matmul, as products of
their own."""

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
from kernelyard_dnnl.nodes import shift_to_signed, zero_point
from kernelyard_dnnl.primitive_kind import INTEGERS
from kernelyard_dnnl.primitives.integer_product import can_multiply_integers

INT8 = np.iinfo(np.int8)
# From an operator to the axis of its weights that the result's channels lie along.
CHANNELS = {f"nn.conv{rank}d": 0 for rank in (1, 2, 3)} | {f"nn.conv{rank}d_transpose": 1 for rank in (1, 2, 3)}
SEPARATED = {*CHANNELS, "matmul"}


class SeparateZeroPoints(FunctionPass):
    """`conv(x, dequantize(w, s, z))` becomes `conv(x, dequantize(w, s, 0))` less what the zero points add to it, and so
    does a matmul whose columns have different ones.

    That is the same convolution of the sums of x over its channels, by `s * z`: the sums are a product of integers with
    one channel, and a convolution of one channel in floats is cheap. With groups, which have few channels each, it is
    `conv(x, dequantize(z, s, 0))`. Where int8 holds weights less their zero points, they are stored so. Depthwise,
    where oneDNN takes as long for integers as for floats, the weights become floats, with no correction. A bias
    is added before the correction is subtracted, by the first convolution itself. The correction has all channels, also
    where they are alike: oneDNN's kernels for integers subtract nothing that broadcasts along them.
    """

    name = "separate_zero_points"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        is_there = any(getattr(binding.value, "op_name", "") in SEPARATED for binding in function.bindings)
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
        return self._separate(value) if value.op_name in SEPARATED else value

    def _separate(self, call: Call) -> Expr:
        data, decoder = (self.value_of(operand) for operand in call.args)
        if not _is_stored_data(data) or not isinstance(decoder, Call) or decoder.op_name != "dequantize":
            return call
        codes, scale, zero = shift_to_signed(decoder.args[0]), decoder.args[1], zero_point(decoder)
        if not (isinstance(codes, Constant) and isinstance(scale, Constant) and isinstance(zero, Constant)):
            return call
        axis = CHANNELS.get(call.op_name, codes.data.ndim - 1)
        if codes.data.dtype != np.int8 or not zero.data.any() or decoder.attrs["axis"] not in (None, axis):
            return call
        if call.op_name == "matmul" and not _has_several(zero, codes):
            return call
        return self._without_zeros(call, decoder, _along(axis, zero.data.astype(np.int8), codes.data.ndim))

    def _without_zeros(self, call: Call, decoder: Call, points: np.ndarray) -> Call:
        codes, scale = shift_to_signed(decoder.args[0]), decoder.args[1]
        assert isinstance(codes, Constant)
        assert isinstance(scale, Constant)
        centred = codes.data.astype(np.int16) - points
        if INT8.min <= centred.min(initial=0) and centred.max(initial=0) <= INT8.max:
            return self._product(call, decoder, centred.astype(np.int8), scale)
        if _is_depthwise(call, codes):
            real = centred * _along(CHANNELS[call.op_name], scale.data, centred.ndim)
            return Call(call.op, [call.args[0], Constant(real.astype(np.float32))], call.attrs)
        correction = self._correction(call, decoder, scale, np.broadcast_to(points, codes.data.shape))
        made = _call("subtract", *map(self.emit, (self._product(call, decoder, codes.data, scale), correction)))
        self.separated.append(made)
        return made

    def _correction(self, call: Call, decoder: Call, scale: Constant, zeros: np.ndarray) -> Call:
        """Return what zero points, one for each weight, add to a product."""
        if call.op_name == "matmul":
            return self._of_row_sums(call, (scale.data * zeros[:1]).astype(np.float32), len(zeros))
        if call.attrs["groups"] > 1:
            return self._product(call, decoder, np.ascontiguousarray(zeros), scale)
        return self._of_sums(call, _along(CHANNELS[call.op_name], scale.data, zeros.ndim) * zeros)

    def _product(self, call: Call, decoder: Call, codes: np.ndarray, scale: Constant) -> Call:
        zero = Constant(np.zeros(scale.data.shape, np.int8))
        weight = Call(decoder.op, [Constant(codes), scale, zero], decoder.attrs)
        return Call(call.op, [call.args[0], self.emit(weight)], call.attrs)

    def _of_row_sums(self, call: Call, factors: np.ndarray, width: int) -> Call:
        """Return the sums of rows of the data, as a column, times a row of factors."""
        ones = Constant(np.ones((width, 1), np.int8))
        one = self.emit(_call("dequantize", ones, Constant(np.float32(1)), Constant(np.int8(0))))
        return _call("matmul", self.emit(_call("matmul", call.args[0], one)), Constant(factors))

    def _of_sums(self, call: Call, factors: np.ndarray) -> Call:
        """Return the convolution of the sums over all channels by weights that are alike in each channel."""
        shape = factors.shape
        axis, window = CHANNELS[call.op_name], shape[2:]
        ones = Constant(np.ones((1, shape[1 - axis], *(1,) * len(window)), np.int8))
        one = self.emit(_call("dequantize", ones, Constant(np.float32(1)), Constant(np.int8(0))))
        sums = self.emit(Call(get_op(f"nn.conv{len(window)}d"), [call.args[0], one], {}))
        alike = factors[:, :1] if axis == 0 else factors[:1]
        weight = Constant(np.ascontiguousarray(alike.astype(np.float32)))
        return Call(call.op, [sums, weight], call.attrs)

    def _with_bias(self, call: Call) -> Expr:
        """Return a sum with a constant so that the constant is added before the correction."""
        for operand, bias in (call.args, call.args[::-1]):
            value = self.value_of(operand)
            if isinstance(bias, Constant) and isinstance(value, Call) and any(value is each for each in self.separated):
                product, correction = value.args
                return _call("subtract", self.emit(_call("add", product, bias)), correction)
        return call


def _along(axis: int, numbers: np.ndarray, rank: int) -> np.ndarray:
    """Return numbers, one or one for each channel, so that they broadcast to weights."""
    return numbers.reshape(*(1,) * axis, -1, *(1,) * (rank - axis - 1))


def _is_depthwise(call: Call, codes: Constant) -> bool:
    """Return True for a convolution, not transposed, of each channel by itself."""
    return CHANNELS.get(call.op_name) == 0 and codes.data.shape[1] == 1 < call.attrs["groups"] == len(codes.data)


def _has_several(zero: Constant, codes: Constant) -> bool:
    """Return True for zero points of a matrix's columns; a single one is what oneDNN's matmul has."""
    return zero.data.size > 1 and codes.data.ndim == 2


def _is_stored_data(value: Expr) -> bool:
    """Return True for a dequantize of 8 bits that are computed, with one scale and one zero point."""
    if not isinstance(value, Call) or value.op_name != "dequantize" or isinstance(value.args[0], Constant):
        return False
    return value.args[0].tensor_type.dtype in INTEGERS and not any(each.tensor_type.rank for each in value.args[1:])


def _call(op: str, *operands: Expr) -> Call:
    return Call(get_op(op), operands, {})
