"""The operators whose type is stated: calls of what is no operator, branches and loops, and memory for calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.errors import TypeInferenceError
from kernelyard.ir.control_flow import COLLECTED, IF, INVOKE_CLOSURE, MAKE_CLOSURE, WHILE
from kernelyard.ir.op import Attribute, Attributes, Op, register_op
from kernelyard.ir.types import TensorType, Type


def require_stated_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    """Return the type rule of operators whose type is stated. Raises: TypeInferenceError."""
    raise TypeInferenceError("the result type of this call must be stated when it is created; it cannot be inferred")


CALL_TIR = register_op(
    Op(
        "call_tir",
        ("function", "args*"),
        require_stated_type,
        opaque_type=True,
        summary="a PrimFunc of the module, called with inputs; its outputs are the result",
    )
)
CALL_DPS_PACKED = register_op(
    Op(
        "call_dps_packed",
        ("function", "args*"),
        require_stated_type,
        opaque_type=True,
        summary="a function of an attached RuntimeModule, called with inputs and then the outputs that it fills",
    )
)
IF_OP = register_op(
    Op(
        IF,
        ("then_branch", "else_branch", "condition", "args*"),
        require_stated_type,
        opaque_type=True,
        introduces_symbols=True,
        summary="the result of one of two functions of the module, chosen by a bool condition",
    )
)
WHILE_OP = register_op(
    Op(
        WHILE,
        ("condition", "body", "args*"),
        require_stated_type,
        attributes={COLLECTED: Attribute("int", 0)},
        opaque_type=True,
        introduces_symbols=True,
        summary="the operands, updated by the body function while the condition function returns true; "
        "then the body's further results, stacked over the iterations along a new first axis",
    )
)
MAKE_CLOSURE_OP = register_op(
    Op(
        MAKE_CLOSURE,
        ("function", "captured*"),
        require_stated_type,
        opaque_type=True,
        summary="a private function of the module with its first arguments given, as a value",
    )
)
INVOKE_CLOSURE_OP = register_op(
    Op(
        INVOKE_CLOSURE,
        ("closure", "args*"),
        require_stated_type,
        opaque_type=True,
        introduces_symbols=True,
        pure=False,  # which function it is, is not known before
        summary="the result of a closure, given its remaining arguments",
    )
)


def _allocate(*, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.zeros(shape, to_numpy(dtype))


ALLOC_TENSOR = register_op(
    Op(
        "alloc_tensor",
        (),
        require_stated_type,
        reference=_allocate,
        attributes={"shape": Attribute("dims"), "dtype": Attribute("dtype")},
        pure=False,  # two calls give two buffers, which their consumers may write to
        opaque_type=True,
        summary="memory for a function that is called later, such as its workspace",
    )
)
