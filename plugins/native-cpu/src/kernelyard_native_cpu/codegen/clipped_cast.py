"""Conversions of clipped floats to integers of 8 and 16 bits, as a quantize ends with.

A float may be infinite, NaN, or beyond 32 bits, and so a conversion compares it before and after. A clip has done that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import Binary, Cast, Const, Expr
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value
from kernelyard_native_cpu.codegen.types import compute_type

_WIDEST = 2  # bytes of the integers whose limits a float32 holds
_INTEGERS = (*dtypes.SIGNED, *dtypes.UNSIGNED)


class Clip(NamedTuple):
    """A float `x` between two numbers around 0."""

    x: Expr
    low: float
    high: float


def clip_of(expr: Cast) -> Clip | None:
    """Return the clip that a conversion reads, if the integers hold all that it leaves."""
    match expr.x:
        case Binary(op="min", a=Binary(op="max", a=x, b=Const(value=low)), b=Const(value=high)):
            pass
        case _:
            return None
    if not dtypes.is_float(x.dtype) or expr.dtype not in _INTEGERS or dtypes.itemsize(expr.dtype) > _WIDEST:
        return None
    limits = np.iinfo(expr.dtype)
    return Clip(x, float(low), float(high)) if limits.min <= low <= 0 <= high <= limits.max else None


def cast_clipped(e: FunctionEmitter, number: Value, low: float, high: float, target: str) -> Value:
    """Emit the conversion of a clipped float. NaN gives 0, which a clip from 0 makes of it by itself."""
    if low < 0:
        number = e.select(e.compare("uno", number, number), 0.0, number)
    above = e.select(e.compare("ogt", number, low), number, low)
    within = e.select(e.compare("olt", above, high), above, high)
    return e.convert("trunc", e.convert("fptosi", within, "i32"), compute_type(target))
