"""Dot products of bytes: four of each lane, unsigned by signed, added to sums of 32 bits."""

from __future__ import annotations

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Operand, Value, vector_type

_VECTOR_BITS = (128, 256, 512)


def dot_product_accumulate(e: FunctionEmitter, total: Operand, a: Operand, b: Operand) -> Value:
    """Return `total` plus the dot products of the bytes of words, those of `a` unsigned, those of `b` signed.

    It is exact: nothing saturates on the way, on no target.
    """
    total, a, b = e.align_lanes(total, a, b)
    bits = 32 * total.lanes
    if not e.has_vnni or bits not in _VECTOR_BITS:
        return e.add(total, _widened(e, a, b))
    text = e.call(f"llvm.x86.avx512.vpdpbusd.{bits}", total.text, total, a, b)
    return e.pure(text, "i32", total.lanes, [total, a, b])


def _widened(e: FunctionEmitter, a: Value, b: Value) -> Value:
    """Multiply even and odd bytes in 16 bits, which hold each product of two, and add up in 32 bits."""
    a, b = _halves(e, a), _halves(e, b)
    even = e.mul(e.binary("and", a, 255), e.binary("ashr", e.binary("shl", b, 8), 8))
    odd = e.mul(e.binary("lshr", a, 8), e.binary("ashr", b, 8))
    return e.add(_added_pairs(e, even), _added_pairs(e, odd))


def _halves(e: FunctionEmitter, word: Value) -> Value:
    lanes = 2 * word.lanes
    return e.pure(f"bitcast {word.typed} to {vector_type('i16', lanes)}", "i16", lanes, [word])


def _added_pairs(e: FunctionEmitter, halves: Value) -> Value:
    lanes = halves.lanes // 2
    words = e.pure(f"bitcast {halves.typed} to {vector_type('i32', lanes)}", "i32", lanes, [halves])
    return e.add(e.binary("ashr", words, 16), e.binary("ashr", e.binary("shl", words, 16), 16))
