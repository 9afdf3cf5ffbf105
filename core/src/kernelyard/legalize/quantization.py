"""Rules of affine quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelyard import dims
from kernelyard.dtypes import itemsize, to_numpy
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.ops.quantization import LARGEST_CODES, LEAST_OF_BLOCK
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import INDEX, Expr, binary, cast, const, maximum, minimum, select, unary


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
def fake_quantize(b: RuleBuilder, x: Operand, *, block: int, bits: int) -> Buffer:
    quantized = quantize_blocks(b, x, block, bits)
    shape = (*quantized.scales.shape, block)
    wide = b.compute(
        shape, lambda *at: cast(code_of(quantized.codes, at[:-1], at[-1]), x.dtype) * quantized.scales[at[:-1]]
    )
    return b.compute(x.shape, lambda *at: wide[(*at[:-1], at[-1] // block, at[-1] % block)])


class QuantizedBlocks(NamedTuple):
    """Blocks of the last axis: codes in int8 (..., blocks, digits, block), and what one is worth (..., blocks).
    Codes of 16 bits have two digits to the base 256, the higher one first."""

    codes: Buffer
    scales: Buffer


def quantize_blocks(b: PrimFuncBuilder, x: Operand | Buffer, block: int, bits: int) -> QuantizedBlocks:
    """Return the blocks of float32 or float64 as `fake_quantize` rounds them; the last one is filled with zeros."""
    (*outer, size), largest_code, digits = x.shape, LARGEST_CODES[bits], bits // 8
    shape = (*outer, dims.ceildiv(size, block))
    is_whole = dims.floordiv(size, block) * block == size

    def element(at: Sequence[Expr]) -> Expr:
        place = at[-2] * block + at[-1]
        number = x[(*at[:-2], place)]
        return number if is_whole else select(place < size, number, 0.0)

    largest = b.reduce("max", shape, (block,), lambda at, point: unary("abs", element((*at, *point))), name="largest")
    inverse = b.compute(
        shape,
        lambda *at: select(largest[at] < LEAST_OF_BLOCK, 0.0, const(largest_code, x.dtype) / largest[at]),
        name="inverse",
    )

    def digit(*at: Expr) -> Expr:
        *outer, number, place = at
        code = unary("round", element((*outer, place)) * inverse[tuple(outer)])
        if digits == 1:
            return cast(code, "int8")
        # Half a digit more, without the digits behind it; the higher bits are cut off.
        last = cast(number, "int32")
        return cast(binary("shr", cast(code, "int32") + (128 - last * 128), 8 - last * 8), "int8")

    codes = b.compute((*shape, digits, block), digit, name="codes")
    return QuantizedBlocks(codes, b.compute(shape, lambda *at: largest[at] * (1 / largest_code), name="scales"))


def code_of(codes: Buffer, block: Sequence[Expr], place: Expr) -> Expr:
    """Return a rounded number in int32, of its digits."""
    digits = codes.shape[-2]
    assert isinstance(digits, int)
    first, *others = (cast(codes[(*block, number, place)], "int32") for number in range(digits))
    return first * 256 + others[0] if others else first


@legalize("lookup")
def lookup(b: RuleBuilder, x: Operand, table: Operand) -> Buffer:
    return b.compute(x.shape, lambda *at: table[(cast(x[at], INDEX) & 255,)])


def _is_short(*of: str) -> bool:
    return all(itemsize(dtype) <= 2 for dtype in of)


def _parameter(parameter: Operand, axis: int | None, at: Sequence[Expr]) -> Expr:
    return parameter[()] if parameter.rank == 0 or axis is None else parameter[at[axis]]
