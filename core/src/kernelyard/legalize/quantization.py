"""Rules of affine quantization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dtypes import itemsize, to_numpy
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Expr, cast, maximum, minimum, unary


@legalize("quantize")
def quantize(b: RuleBuilder, x: Operand, scale: Operand, zero: Operand, *, axis: int | None, dtype: str) -> Buffer:
    limits = np.iinfo(to_numpy(dtype))
    # Numbers that float32 does not hold exactly are beyond the limits of 8 and 16 bits anyway.
    wide = "float32" if _is_short(dtype, zero.dtype) else "float64"

    def body(*at: Expr) -> Expr:
        scaled = unary("round", cast(x[at], "float32") / cast(_parameter(scale, axis, at), "float32"))
        shifted = cast(scaled, wide) + cast(_parameter(zero, axis, at), wide)
        return cast(minimum(maximum(shifted, float(limits.min)), float(limits.max)), dtype)

    return b.compute(x.shape, body)


@legalize("dequantize")
def dequantize(b: RuleBuilder, x: Operand, scale: Operand, zero: Operand, *, axis: int | None, dtype: str) -> Buffer:
    wide = "int32" if _is_short(x.dtype, zero.dtype) else "int64"

    def body(*at: Expr) -> Expr:
        whole = cast(x[at], wide) - cast(_parameter(zero, axis, at), wide)
        return cast(cast(whole, "float32") * cast(_parameter(scale, axis, at), "float32"), dtype)

    return b.compute(x.shape, body)


@legalize("lookup")
def lookup(b: RuleBuilder, x: Operand, table: Operand) -> Buffer:
    return b.compute(x.shape, lambda *at: table[(cast(x[at], INDEX) & 255,)])


def _is_short(*of: str) -> bool:
    return all(itemsize(dtype) <= 2 for dtype in of)


def _parameter(parameter: Operand, axis: int | None, at: Sequence[Expr]) -> Expr:
    return parameter[()] if parameter.rank == 0 or axis is None else parameter[at[axis]]
