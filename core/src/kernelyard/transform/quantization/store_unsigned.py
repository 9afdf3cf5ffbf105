"""Data of int8 as uint8, for kernels that multiply unsigned data by signed weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelyard.ir import Binding, Call, Constant, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.ir.types import TensorType
from kernelyard.ir.visitor import result_vars, uses
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.quantization.quantized_movement import MOVEMENTS

OFFSET = 128


class StoreUnsigned(FunctionPass):
    """`dequantize(quantize(x, s, z), s, z)` of int8 becomes one of uint8 with the zero point `z + 128`.

    Instructions for products of bytes (VNNI) take unsigned data: of int8, a kernel adds 128 to each number and
    subtracts what that adds to the sum, and of a zero point what that adds. A relu's result has the zero point -128 in
    int8, and 0 in uint8, which is nothing to subtract. Numbers may be moved on the way (`quantized_movement.py`), where
    nothing reads them but a dequantize. Functions whose data all lie around 0 are left as they are.
    """

    name = "store_unsigned"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        stored = _find_stored(function)
        return _Shifter(stored, _find_dequantizes(function, stored)).mutate(function) if stored else function


def _find_stored(function: Function) -> set[Var]:
    """Return the variables of int8 that a quantize makes and only dequantizes and movements read."""
    readers, results = uses(function), set(result_vars(function))
    made = {binding.var: binding.value for binding in function.bindings if _is_int8(binding.value)}
    found = {var for var, value in made.items() if var not in results and _can_shift(value)}
    if not any(_has_zero_point(made[var]) for var in found):
        return set()
    while True:
        left = {
            var
            for var in found
            if _data(made[var]) <= found and all(_reads_data(binding, var, found) for binding in readers[var])
        }
        if left == found:
            return found
        found = left


def _find_dequantizes(function: Function, stored: set[Var]) -> set[Var]:
    """Return the variables of the dequantizes that read these: others may have a zero point of int8 for uint8."""
    calls = ((each.var, each.value) for each in function.bindings if isinstance(each.value, Call))
    return {var for var, call in calls if call.op_name == "dequantize" and call.args[0] in stored}


def _is_int8(value: Expr) -> bool:
    return isinstance(value, Call) and isinstance(value.type, TensorType) and value.type.dtype == "int8"


def _can_shift(value: Expr) -> bool:
    assert isinstance(value, Call)
    if value.op_name == "quantize":
        return _is_known_zero_point(value.args[2])
    return value.op_name in MOVEMENTS


def _is_known_zero_point(zero: Expr) -> bool:
    """Return True for constants of int8: others may lie where no uint8 does once they are shifted."""
    return isinstance(zero, Constant) and zero.tensor_type.dtype == "int8"


def _has_zero_point(value: Expr) -> bool:
    return (
        isinstance(value, Call)
        and value.op_name == "quantize"
        and isinstance(value.args[2], Constant)
        and bool(value.args[2].data.any())
    )


def _data(value: Expr) -> set[Expr]:
    """Return the stored operands that a movement hands on; a quantize has none."""
    assert isinstance(value, Call)
    return set() if value.op_name == "quantize" else set(MOVEMENTS[value.op_name].data(value))


def _reads_data(binding: Binding, var: Var, found: set[Var]) -> bool:
    """Return True where a binding reads a variable as stored numbers, and can read them shifted."""
    call = binding.value
    if not isinstance(call, Call):
        return False
    if call.op_name == "dequantize":
        return _is_known_zero_point(call.args[2])
    return binding.var in found and var not in call.args[len(MOVEMENTS[call.op_name].data(call)) :]


class _Shifter(FunctionMutator):
    def __init__(self, stored: set[Var], dequantizes: set[Var]) -> None:
        super().__init__()
        self._stored, self._dequantizes = stored, dequantizes

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call):
            return value
        if var in self._dequantizes:
            return Call(value.op, [*value.args[:2], _shift_zero_point(value.args[2])], value.attrs)
        if var not in self._stored:
            return value
        if value.op_name == "quantize":
            attrs = {**value.attrs, "dtype": "uint8"}
            return Call(value.op, [*value.args[:2], _shift_zero_point(value.args[2])], attrs)
        return Call(value.op, value.args, _shift_padding(value)) if value.op_name == "pad" else value


def _shift_zero_point(zero: Expr) -> Constant:
    """Return the zero point of uint8 for one of int8."""
    assert isinstance(zero, Constant)
    return Constant((zero.data.astype(np.int16) + OFFSET).astype(np.uint8))


def _shift_padding(pad: Call) -> Mapping[str, Any]:
    """Return the attributes of a `pad` of uint8 for those of one of int8."""
    return {**pad.attrs, "value": pad.attrs["value"] + OFFSET} if pad.attrs["mode"] == "constant" else pad.attrs
