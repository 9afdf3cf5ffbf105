"""Rules of affine quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelyard import dims
from kernelyard.dtypes import itemsize, to_numpy
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.ops.quantization import LARGEST_OF_BYTE, LEAST_OF_BLOCK
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import INDEX, Expr, cast, const, maximum, minimum, select, unary


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


@legalize("fake_quantize", widen=True)
def fake_quantize(b: RuleBuilder, x: Operand, *, block: int) -> Buffer:
    quantized = quantize_blocks(b, x, block)
    wide = b.compute(
        quantized.codes.shape, lambda *at: cast(quantized.codes[at], "float32") * quantized.scales[at[:-1]]
    )
    return b.compute(x.shape, lambda *at: wide[(*at[:-1], at[-1] // block, at[-1] % block)])


class QuantizedBlocks(NamedTuple):
    """Blocks of the last axis (..., blocks, block): codes in int8, and what one is worth in float32 (..., blocks)."""

    codes: Buffer
    scales: Buffer


def quantize_blocks(b: PrimFuncBuilder, x: Operand | Buffer, block: int) -> QuantizedBlocks:
    """Return the blocks of float32 in int8, as `fake_quantize` rounds them; the last one is filled with zeros."""
    *outer, size = x.shape
    shape = (*outer, dims.ceildiv(size, block))
    is_whole = dims.floordiv(size, block) * block == size

    def element(at: Sequence[Expr]) -> Expr:
        place = at[-2] * block + at[-1]
        number = x[(*at[:-2], place)]
        return number if is_whole else select(place < size, number, 0.0)

    largest = b.reduce("max", shape, (block,), lambda at, point: unary("abs", element((*at, *point))), name="largest")
    inverse = b.compute(
        shape,
        lambda *at: select(largest[at] < LEAST_OF_BLOCK, 0.0, const(LARGEST_OF_BYTE, "float32") / largest[at]),
        name="inverse",
    )
    codes = b.compute(
        (*shape, block), lambda *at: cast(unary("round", element(at) * inverse[at[:-1]]), "int8"), name="codes"
    )
    return QuantizedBlocks(codes, b.compute(shape, lambda *at: largest[at] * (1 / LARGEST_OF_BYTE), name="scales"))


@legalize("lookup")
def lookup(b: RuleBuilder, x: Operand, table: Operand) -> Buffer:
    return b.compute(x.shape, lambda *at: table[(cast(x[at], INDEX) & 255,)])


def _is_short(*of: str) -> bool:
    return all(itemsize(dtype) <= 2 for dtype in of)


def _parameter(parameter: Operand, axis: int | None, at: Sequence[Expr]) -> Expr:
    return parameter[()] if parameter.rank == 0 or axis is None else parameter[at[axis]]
