"""Stages: operators after a primitive, applied to its result as post-ops.

One operator may be several: `c / x` is a reciprocal, then a multiplication by c.
"""

from __future__ import annotations

import math

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Call, Constant, Expr
from kernelyard_dnnl.post_ops import (
    COMBINED,
    ELTWISE,
    NEGATIVE,
    POWERS,
    REVERSED,
    SCALAR,
    SEVERAL,
    Binary,
    Eltwise,
    Stage,
)


def scalar_of(expr: Expr) -> float | None:
    """Return the value of a constant with one element, else None."""
    if isinstance(expr, Constant) and expr.data.size == 1:
        return float(expr.data.reshape(()))
    return None


def exponent_of(power: Call) -> float:
    """Return the exponent of a power, a constant scalar."""
    exponent = scalar_of(power.args[1])
    assert exponent is not None, "the pattern takes constants only"
    return exponent


def stages_of(call: Call, x: Expr) -> tuple[Stage, ...]:
    """Return the post-op stages that apply `call`, one of whose arguments is `x`, to x."""
    if call.op_name == "astype":
        return ()  # the primitive stores its result in that dtype
    if call.op_name == "power":
        exponent = exponent_of(call)
        return POWERS.get(exponent, (Eltwise("pow", 1.0, exponent),))
    if call.op_name in SEVERAL:
        return SEVERAL[call.op_name]
    if call.op_name in ELTWISE:
        return (ELTWISE[call.op_name](call.attrs),)
    left, right = call.args
    if left is x:
        return (_combine(call.op_name, right),)
    if call.op_name in REVERSED:
        first, op = REVERSED[call.op_name]
        return _join(first, _combine(op, left))
    return (_combine(call.op_name, left),)


def simulate_quantization(encoder: Call, decoder: Call) -> tuple[Stage, ...]:
    """Return the stages that give what a decoder makes of the integers that an encoder would store: rounded and cut off
    before the zero point is added, so that ties go where the quantize has them go.

    Scales and zero points are constants, one for all.
    """
    scale, zero, scale_read, zero_read = (scalar_of(each) for call in (encoder, decoder) for each in call.args[1:])
    assert scale is not None
    assert zero is not None
    assert scale_read is not None
    assert zero_read is not None
    limits = np.iinfo(to_numpy(encoder.tensor_type.dtype))
    return (
        Eltwise("linear", 1 / scale, 0.0),
        Eltwise("round"),
        Eltwise("clip", limits.min - zero, limits.max - zero),
        Eltwise("linear", scale_read, (zero - zero_read) * scale_read),
    )


def functions_of(call: Call, x: Expr) -> list[Eltwise]:
    """Return the eltwise post-ops that compute a function of x alone."""
    return [stage for stage in stages_of(call, x) if isinstance(stage, Eltwise)]


def _combine(op: str, operand: Expr) -> Stage:
    """Return the post-op stage of x op operand."""
    scalar = scalar_of(operand)
    if op == "nn.prelu" and scalar is not None:
        return Eltwise("relu", scalar)
    if scalar is not None and op in SCALAR and math.isfinite(scalar):
        linear = SCALAR[op](scalar)
        if linear is not None:
            return linear
    return Binary(COMBINED[op], operand)


def _join(first: Eltwise, second: Stage) -> tuple[Stage, ...]:
    """Return both, in one where that is exact: c - x is the linear function -x + c, and c / x the power c * x ** -1."""
    if not isinstance(second, Eltwise):
        return first, second
    if first == NEGATIVE:
        return (Eltwise("linear", -second.alpha, second.beta),)
    return (Eltwise("pow", second.alpha, -1.0),)
