"""Move dequantization behind data movement, so that integers are moved, and products read them."""

from __future__ import annotations

import logging

import numpy as np

from kernelyard.dtypes import itemsize, to_numpy
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, TupleGetItem, Var, get_op
from kernelyard.ir.types import TensorType
from kernelyard.ir.visitor import read_once
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import defining_call
from kernelyard.transform.quantization.quantized_movement import (
    MOVEMENTS,
    Movement,
    difference,
    get_stored_dtype,
    has_positive_scales,
    refusal,
)

log = logging.getLogger(__name__)

_INDICES = ("argmax", "argmin")
_HOISTED_THROUGH = ("reshape", "permute_dims")


class PropagateDequantize(FunctionPass):
    """`move(dequantize(x))` becomes `dequantize(move(x))`, and `quantize(dequantize(x))` of the same parameters `x`.

    move: the operators of the table in `quantized_movement.py`, with its conditions; argmax and argmin read stored
    numbers too. A quantize goes the other way, before reshapes and transposes that nothing else reads, to what
    computes its operand. An activation that only cuts off what the quantize cuts off as well goes.
    """

    name = "propagate_dequantize"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        names = {getattr(binding.value, "op_name", None) for binding in function.bindings}
        return _Propagator(function).mutate(function) if names & {"quantize", "dequantize"} else function


class _Propagator(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)
        self._splits: dict[Expr, tuple[Var, Call, int | None]] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem) and value.tuple_value in self._splits:
            stored, dequantize, axis = self._splits[value.tuple_value]
            part = self.emit(TupleGetItem(stored, value.index), var.name, var.origin)
            return _with(dequantize, part, axis)
        if not isinstance(value, Call):
            return value
        if value.op_name == "quantize":
            return self._quantize(value)
        if value.op_name in _INDICES:
            return self._index(value)
        movement = MOVEMENTS.get(value.op_name)
        return value if movement is None else self._move(var, value, movement)

    def _move(self, var: Var, call: Call, movement: Movement) -> Expr:
        found = [defining_call(self, operand, "dequantize") for operand in movement.data(call)]
        dequantizes = [each for each in found if each is not None]
        if not dequantizes or len(dequantizes) < len(found):
            return call
        reason = refusal(call, dequantizes)
        if reason is not None:
            log.debug("dequantize stays before %s %r: %s", call.op_name, var, reason)
            return call
        first = dequantizes[0]
        operands = [*(each.args[0] for each in dequantizes), *call.args[len(found) :]]
        moved = Call(call.op, operands, movement.attrs(call, first))
        axis = first.attrs["axis"]
        axis = None if axis is None else movement.axis(call, axis % call.args[0].tensor_type.rank)
        stored = self.emit(moved, var.name, var.origin)
        if isinstance(call.type, TensorType):
            return _with(first, stored, axis)
        assert isinstance(stored, Var)
        self._splits[var] = stored, first, axis
        return call

    def _index(self, call: Call) -> Expr:
        dequantize = defining_call(self, call.args[0], "dequantize")
        if dequantize is None or dequantize.args[1].tensor_type.rank or dequantize.args[2].tensor_type.rank:
            return call
        return Call(call.op, dequantize.args[:1], call.attrs) if has_positive_scales(dequantize) else call

    def _quantize(self, call: Call) -> Expr:
        moves: list[Call] = []
        while True:
            source = self.value_of(call.args[0])
            if not isinstance(source, Call):
                break
            if source.op_name == "dequantize" and is_inverse(call, source):
                return self._again(moves, source.args[0])
            if call.args[0] not in self._read_once:
                break
            if source.op_name == "concat" and self._joins_stored(call, source):
                parts = [self.emit(self._quantize(Call(call.op, [p, *call.args[1:]], call.attrs))) for p in source.args]
                return self._again(moves, Call(source.op, parts, source.attrs))
            if source.op_name in _HOISTED_THROUGH and not any(arg.tensor_type.rank for arg in call.args[1:]):
                moves.append(source)
            elif not _is_absorbed(call, source):
                break
            call = Call(call.op, [source.args[0], *call.args[1:]], call.attrs)
        return self._again(moves, call)

    def _joins_stored(self, quantize: Call, concat: Call) -> bool:
        """Return True where all parts are stored already, each with one scale of its own."""
        stored = [defining_call(self, part, "dequantize") for part in concat.args]
        scaled = [quantize, *(each for each in stored if each is not None)]
        return None not in stored and not any(arg.tensor_type.rank for call in scaled for arg in call.args[1:])

    def _again(self, moves: list[Call], x: Expr) -> Expr:
        """Return the movements, of which the last one comes first, of another operand."""
        for move in reversed(moves):
            x = Call(move.op, [self.emit(x)], move.attrs)
        return x


def _with(dequantize: Call, stored: Expr, axis: int | None) -> Call:
    return Call(dequantize.op, [stored, *dequantize.args[1:]], {**dequantize.attrs, "axis": axis})


def is_inverse(quantize: Call, dequantize: Call) -> bool:
    """Return True where a quantize gives back the numbers that a dequantize has read, for all of them."""
    if difference(dequantize, quantize) is not None or not has_positive_scales(dequantize):
        return False
    # Products with 16 bits and their quotients are still closer to the integer than to the next one in float32.
    size, dtype = itemsize(get_stored_dtype(quantize)), dequantize.tensor_type.dtype
    return size == 1 or (size == 2 and dtype in ("float32", "float64"))


def _is_absorbed(quantize: Call, activation: Call) -> bool:
    """Return True where the bounds of a relu or clip are stored as the least and the largest number, or lie beyond."""
    if activation.op_name == "nn.relu":
        low, high = 0.0, None
    elif activation.op_name == "clip":
        low, high = activation.attrs["min"], activation.attrs["max"]
    else:
        return False
    if not has_positive_scales(quantize) or not isinstance(quantize.args[2], Constant):
        return False
    limits = np.iinfo(to_numpy(get_stored_dtype(quantize)))
    return all(
        bound is None or bool((_quantize_number(quantize, bound) == limit).all())
        for bound, limit in ((low, limits.min), (high, limits.max))
    )


def _quantize_number(quantize: Call, value: float) -> np.ndarray:
    """Return what a quantize of constant parameters stores for a number, for each scale."""
    scale, zero = (np.atleast_1d(arg.data) for arg in quantize.args[1:] if isinstance(arg, Constant))
    size = max(scale.size, zero.size)
    x = np.full(size, value, np.float32)
    reference = get_op("quantize").reference
    assert reference is not None
    parameters = (np.broadcast_to(each, size) for each in (scale, zero))
    return reference(x, *parameters, axis=0, dtype=quantize.attrs["dtype"])
