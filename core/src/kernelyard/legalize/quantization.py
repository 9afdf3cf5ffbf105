"""Rules of affine quantization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Expr, cast, maximum, minimum, unary


@legalize("quantize")
def quantize(b: RuleBuilder, x: Operand, scale: Operand, zero: Operand, *, axis: int | None, dtype: str) -> Buffer:
    limits = np.iinfo(to_numpy(dtype))

    def body(*at: Expr) -> Expr:
        scaled = unary("round", cast(x[at], "float32") / cast(_parameter(scale, axis, at), "float32"))
        shifted = cast(scaled, "float64") + cast(_parameter(zero, axis, at), "float64")
        return cast(minimum(maximum(shifted, float(limits.min)), float(limits.max)), dtype)

    return b.compute(x.shape, body)


@legalize("dequantize")
def dequantize(b: RuleBuilder, x: Operand, scale: Operand, zero: Operand, *, axis: int | None, dtype: str) -> Buffer:
    def body(*at: Expr) -> Expr:
        whole = cast(x[at], "int64") - cast(_parameter(zero, axis, at), "int64")
        return cast(cast(whole, "float32") * cast(_parameter(scale, axis, at), "float32"), dtype)

    return b.compute(x.shape, body)


def _parameter(parameter: Operand, axis: int | None, at: Sequence[Expr]) -> Expr:
    return parameter[()] if parameter.rank == 0 or axis is None else parameter[at[axis]]
