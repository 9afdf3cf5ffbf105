"""Bring scales, shifts and activations next to the convolutions whose results are concatenated in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.ir.visitor import read_once
from kernelyard.ops.activation import ACTIVATIONS
from kernelyard.ops.elementwise import UNARY
from kernelyard.transform.algebraic.channel_affine import as_linear, channel_affine, channel_constant
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

POINTWISE = frozenset((*ACTIVATIONS, *UNARY, "clip"))


class SinkConcat(FunctionPass):
    """`f(concat(conv(x), conv(y)))` becomes `concat(f(conv(x)), f(conv(y)))`.

    f: functions of one element, and scales and shifts per channel, batch norms too, one after the other. Pieces are
    results of linear operators with constant weights along their channels, each read once: what follows these costs
    nothing there, and a pass over the whole result is saved.
    """

    name = "sink_concat"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Sinker(function).mutate(function)


class _Pieces(NamedTuple):
    """Describe the pieces that a concat puts together along an axis, and the place of each there."""

    pieces: tuple[Expr, ...]
    axis: int
    places: tuple[int, ...]

    def along(self, vector: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the part of a vector, a number for each channel, that belongs to each piece."""
        return (vector[begin:end] for begin, end in pairwise(self.places))


class _Sinker(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)
        self._concats: dict[Expr, _Pieces] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not value.args:
            return value
        if value.op_name == "concat":
            self._remember(var, value)
            return value
        concat = next((self._concats[arg] for arg in value.args if arg in self._concats), None)
        sunk = None if concat is None else self._sunk(concat, value, var.origin)
        if sunk is None or concat is None:
            return value
        if var in self._read_once:
            self._concats[var] = concat._replace(pieces=sunk)
        return Call(get_op("concat"), sunk, {"axis": concat.axis})

    def _remember(self, var: Var, concat: Call) -> None:
        axis = concat.attrs["axis"] % concat.tensor_type.rank
        channels = [self._linear_channels(piece, axis) for piece in concat.args]
        known = [size for size in channels if size is not None]
        if var in self._read_once and len(known) == len(channels):
            self._concats[var] = _Pieces(tuple(concat.args), axis, tuple(accumulate(known, initial=0)))

    def _linear_channels(self, piece: Expr, axis: int) -> int | None:
        """Return the channels of a linear operator's result, or of that with a bias; None for other pieces."""
        value = self.value_of(piece)
        if piece not in self._read_once or not isinstance(value, Call):
            return None
        linear = as_linear(value)
        if linear is not None:
            return linear.channels if linear.axis == axis else None
        channels = value.tensor_type.shape[axis]
        if value.op_name != "add" or not isinstance(channels, int):
            return None
        bias = channel_affine(value, axis, channels)
        return None if bias is None else self._linear_channels(bias.x, axis)

    def _sunk(self, concat: _Pieces, call: Call, origin: str) -> tuple[Expr, ...] | None:
        """Return what the call makes of each piece; None where it is none that can be told for them."""
        if call.op_name in POINTWISE and len(call.args) == 1:
            return tuple(self.emit(Call(call.op, [piece], call.attrs), "piece", origin) for piece in concat.pieces)
        step = channel_affine(call, concat.axis, concat.places[-1])
        if step is None:
            return None
        pieces = concat.pieces
        for op, vector in (("multiply", step.scale), ("add", step.shift)):
            if vector is not None:
                parts = zip(pieces, concat.along(vector), strict=True)
                pieces = tuple(self._combine(op, piece, part, concat.axis, origin) for piece, part in parts)
        return pieces

    def _combine(self, op: str, piece: Expr, vector: np.ndarray, axis: int, origin: str) -> Expr:
        type_ = piece.tensor_type
        constant = channel_constant(vector, type_.rank, axis, type_.dtype)
        return self.emit(Call(get_op(op), [piece, constant]), "piece", origin)
