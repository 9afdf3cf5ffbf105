"""Functions of one quantized tensor, element by element, as tables of all 256 values that they can have."""

from __future__ import annotations

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.ir.op import Op
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.ops.quantization import BYTES, ENTRIES
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import make

_CONVERSIONS = ("dequantize", "quantize")
# What quantized networks write for one activation is shorter; a longer one is computed as it is written.
_MOST_CALLS = 64


class TabulateQuantized(FunctionPass):
    """`quantize(f(dequantize(x)))` of 8 bits becomes `lookup(x, table)`, where f goes element by element.

    f may read x several times, quantize and dequantize on the way, and combine what it reads with numbers: sigmoid,
    silu, hard-swish and gelu, as quantizers write them, are one table each. The entries are what the reference computes
    for each of the 256 values. Scales and zero points are constants, one for the whole tensor; another
    scale is a table, too. What depends on more than one stored tensor is left as it is.
    """

    name = "tabulate_quantized"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        is_there = any(getattr(binding.value, "op_name", "") == "quantize" for binding in function.bindings)
        return _Tabulator().mutate(function) if is_there else function


class _Tabulator(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "quantize" or value.tensor_type.dtype not in BYTES:
            return value
        calls = self._chain(value)
        if calls is None:
            return value
        stored = {operand for call in calls.values() for operand in call.args if self._is_stored(operand, calls)}
        if len(stored) != 1:
            return value
        (x,) = stored
        return make("lookup", x, Constant(_table(x, value, calls)))

    def _chain(self, last: Call) -> dict[Expr, Call] | None:
        """Return the calls behind a call, by what they are bound to, in order; None where one is of another kind."""
        found: dict[Expr, Call] = {}

        def visit(call: Call) -> bool:
            if not _is_elementwise(call, last) or len(found) > _MOST_CALLS:
                return False
            for operand in call.args:
                if isinstance(operand, Constant):
                    continue
                made = self.value_of(operand)
                is_stored = call.op_name in ("dequantize", "lookup")
                if operand in found or (is_stored and getattr(made, "op_name", "") != "lookup"):
                    continue
                if not isinstance(made, Call) or not visit(made):
                    return False
                found[operand] = made
            return True

        if not visit(last):
            return None
        return {**found, last: last}

    def _is_stored(self, operand: Expr, calls: dict[Expr, Call]) -> bool:
        """Return True for what the calls read and do not make."""
        return not isinstance(operand, Constant) and operand not in calls


def _is_elementwise(call: Call, last: Call) -> bool:
    """Return True for a call of the last one's shape, whose constants are numbers, or a table."""
    if not isinstance(call.op, Op) or call.tensor_type.shape != last.tensor_type.shape:
        return False
    if call.op_name == "lookup":
        return isinstance(call.args[1], Constant)
    if call.op_name in _CONVERSIONS:
        stored = call if call.op_name == "quantize" else call.args[0]
        are_known = all(isinstance(arg, Constant) for arg in call.args[1:])
        return are_known and stored.tensor_type.dtype in BYTES and _has_numbers(call)
    return call.op_name in ELEMENTWISE and call.op.reference is not None and _has_numbers(call)


def _has_numbers(call: Call) -> bool:
    return all(arg.data.size == 1 for arg in call.args if isinstance(arg, Constant))


def _table(x: Expr, last: Call, calls: dict[Expr, Call]) -> np.ndarray:
    """Return what the last call makes of each value of eight bits."""
    values: dict[Expr, np.ndarray] = {x: np.arange(ENTRIES, dtype=np.uint8).view(to_numpy(x.tensor_type.dtype))}

    def value_of(operand: Expr, call: Call) -> np.ndarray:
        if not isinstance(operand, Constant):
            return values[operand]
        return operand.data if call.op_name == "lookup" else operand.data.reshape(())

    for made, call in calls.items():
        assert isinstance(call.op, Op)
        assert call.op.reference is not None
        with np.errstate(all="ignore"):
            values[made] = np.asarray(call.op.reference(*(value_of(arg, call) for arg in call.args), **call.attrs))
    return values[last]
