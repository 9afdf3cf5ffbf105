"""The RuntimeModule of kind "reference": operator calls carried out by their NumPy references.

The driver uses it for operators that nothing else compiled; the report names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators that a loaded module names
from kernelyard import dims
from kernelyard.dims import SymbolicDim
from kernelyard.errors import CodegenError, ExecutionError, IRError, ShapeError
from kernelyard.ir.expr import Call
from kernelyard.ir.op import Attributes, Op, get_op
from kernelyard.ops.interpreter import evaluate_attributes
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.abi.spec import Fields, corrupted, read_json, write_json
from kernelyard.runtime.device.tensor import as_array

SCHEMA = 1


@dataclass(frozen=True)
class OpCall:
    """An operator and its attributes; dims among them may be symbolic. left_out: how many operands are not given."""

    op: Op
    attrs: Attributes
    left_out: int = 0

    def run(self, arrays: list[np.ndarray], symbols: Mapping[str, int]) -> tuple[np.ndarray, ...]:
        """Return the results for some inputs."""
        assert self.op.reference is not None
        result = self.op.reference(*arrays, **evaluate_attributes(self.attrs, symbols))
        return result if isinstance(result, tuple) else (result,)


class ReferenceModule(RuntimeModule):
    """Operator calls by symbol."""

    kind: ClassVar[str] = "reference"
    native_hint: ClassVar[str] = "install a code generator and compile the model again: pip install 'kernelyard[cpu]'"

    def __init__(self, calls: Mapping[str, OpCall]) -> None:
        self.calls = dict(calls)

    @classmethod
    def from_calls(cls, calls: Mapping[str, Call]) -> ReferenceModule:
        """Return the module whose functions do what some calls of operators do.

        All arguments of a call become inputs, constants too. Raises: CodegenError for a call without a reference.
        """
        for symbol, call in calls.items():
            if not isinstance(call.op, Op) or call.op.reference is None:
                raise CodegenError(
                    "only operators with a reference can be interpreted", where=symbol, found=call.op_name
                )
        return cls({symbol: _op_call(call.op, call) for symbol, call in calls.items() if isinstance(call.op, Op)})

    def symbols(self) -> tuple[str, ...]:
        return tuple(self.calls)

    def get_function(self, symbol: str) -> Callable[..., None]:
        if symbol not in self.calls:
            raise self.unknown_symbol(symbol)
        call = self.calls[symbol]

        def function(*tensors: Any, symbols: Mapping[str, int] | None = None) -> None:
            arrays = [as_array(tensor) for tensor in tensors]
            count = len(arrays) - 1 if call.op.is_variadic else len(call.op.inputs) - call.left_out
            results = call.run(arrays[:count], symbols or {})
            _fill(arrays[count:], results, symbol)

        return function

    def evaluate(self, symbol: str, arrays: Sequence[np.ndarray], symbols: Mapping[str, int]) -> Sequence[np.ndarray]:
        if symbol not in self.calls:
            raise self.unknown_symbol(symbol)
        return self.calls[symbol].run(list(arrays), symbols)

    def save_to_bytes(self) -> bytes:
        calls = {symbol: _call_to_json(call) for symbol, call in self.calls.items()}
        return write_json({"schema": SCHEMA, "calls": calls})

    def inspect(self) -> str:
        lines = [f"{symbol}: {call.op.name} {dict(call.attrs)}" for symbol, call in self.calls.items()]
        return "\n".join(["reference (NumPy)", *lines])


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> ReferenceModule:
    """Return the module that `save_to_bytes` wrote.

    Raises: ArtifactCorruptedError.
    """
    fields = Fields(read_json(data, "reference module"), "reference module")
    fields.integer("schema", SCHEMA, SCHEMA)
    calls = fields.any("calls")
    if not isinstance(calls, dict):
        raise corrupted("reference module.calls", calls, "an object")
    return ReferenceModule({symbol: _call_from_json(Fields(value, symbol)) for symbol, value in calls.items()})


def _op_call(op: Op, call: Call) -> OpCall:
    return OpCall(op, call.attrs, len(op.inputs) - len(call.args) if op.optional_inputs else 0)


def _fill(outputs: Sequence[np.ndarray], results: Sequence[np.ndarray], symbol: str) -> None:
    given, computed = ([(array.shape, array.dtype.name) for array in arrays] for arrays in (outputs, results))
    if given != computed:
        raise ExecutionError("the outputs do not match the results", where=symbol, found=given, expected=computed)
    for output, result in zip(outputs, results, strict=True):
        output[...] = result


# --- attributes as JSON -----------------------------------------------------------------------------------------------
def _call_to_json(call: OpCall) -> dict[str, Any]:
    attrs = {name: _to_json(value) for name, value in call.attrs.items()}
    return {"op": call.op.name, "attrs": attrs, **({"left_out": call.left_out} if call.left_out else {})}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, SymbolicDim):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _call_from_json(fields: Fields) -> OpCall:
    attrs = fields.any("attrs")
    if not isinstance(attrs, dict):
        raise corrupted(f"{fields.where}.attrs", attrs, "an object")
    try:
        op = get_op(fields.text("op"))
        given = {name: _from_json(op.attributes[name].kind, value) for name, value in attrs.items()}
        checked = op.check_attributes(given)
    except (IRError, ShapeError, KeyError, TypeError, ValueError) as error:
        raise corrupted(fields.where, fields.value, "an operator call of this release") from error
    if op.reference is None:
        raise corrupted(fields.where, op.name, "an operator with a reference")
    left_out = fields.integer("left_out", least=1, most=op.optional_inputs) if "left_out" in fields else 0
    return OpCall(op, checked, left_out)


def _from_json(kind: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(kind, item) for item in value)
    if isinstance(value, str) and kind in ("dim", "dims"):
        return dims.parse(value)
    return float(value) if isinstance(value, str) and kind in ("float", "floats") else value
