"""The operators that call what is no operator: a loop-level function, or a function of an attached RuntimeModule."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.errors import TypeInferenceError
from kernelyard.ir.op import Attributes, Op, register_op
from kernelyard.ir.types import TensorType, Type


def _stated(types: Sequence[TensorType], attrs: Attributes) -> Type:
    raise TypeInferenceError("the result type of this call is stated by whoever makes it, never inferred")


CALL_TIR = register_op(
    Op(
        "call_tir",
        ("function", "args*"),
        _stated,
        opaque_type=True,
        summary="a PrimFunc of the module, called with inputs; its outputs are the result",
    )
)
CALL_DPS_PACKED = register_op(
    Op(
        "call_dps_packed",
        ("function", "args*"),
        _stated,
        opaque_type=True,
        summary="a function of an attached RuntimeModule, called with inputs and then the outputs that it fills",
    )
)
