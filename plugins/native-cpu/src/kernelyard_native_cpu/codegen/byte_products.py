"""Sums of products of unsigned and signed bytes, by instructions of dot products (VNNI, `pmadd...`, `usdot`)."""

from __future__ import annotations

from kernelyard.plugins.codegen_api import PER_WORD
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, literal, vector_type
from kernelyard_native_cpu.codegen.scalable import from_scalable, to_scalable

SIGNS = 0x80808080  # of four int8: turned over, they are what 128 added to each makes uint8
DIGIT_BITS = 8  # of numbers that take several bytes
_SIGNS = {4: "llvm.x86.ssse3.psign.b.128", 8: "llvm.x86.avx2.psign.b"}
_BYTES = {4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw"}
_PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def add_dot_product(e: FunctionEmitter, instruction: str, total: Value, unsigned: Value, signed: Value) -> Value:
    """Return the total and four products for each lane: bytes of two words, unsigned and signed.

    instruction: see `Machine.dot_instruction`; lanes that it does not take are multiplied byte by byte.
    """
    lanes = total.lanes
    if instruction == "vpdpbusd" and lanes in (4, 8, 16):
        operands = [total, e.broadcast(unsigned, lanes), e.broadcast(signed, lanes)]
        return e.pure(e.call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total.text, *operands), "i32", lanes, operands)
    if instruction in ("neon.usdot", "sve.usdot") and lanes == 4:
        bytes_ = [_parts(e, e.broadcast(word, lanes), "i8") for word in (unsigned, signed)]
        call = e.call("llvm.aarch64.neon.usdot.v4i32.v16i8", total.text, total, *bytes_)
        return e.pure(call, "i32", lanes, [total, *bytes_])
    if instruction == "sve.usdot" and lanes in (8, 16):
        return _add_scalable(e, total, *(e.broadcast(word, lanes) for word in (unsigned, signed)))
    if instruction == "pmaddubsw" and lanes in _BYTES:
        zero = e.broadcast(literal(0, "i16"), 2 * lanes)
        return e.add(total, sum_pairs(e, add_pairs_of_bytes(e, zero, unsigned, signed)))
    if instruction == "pmaddwd" and lanes in _PAIRS:
        return _add_pairs(e, total, unsigned, signed)
    for byte in range(PER_WORD):
        number = e.binary("and", e.binary("lshr", unsigned, 8 * byte), 255)
        weight = e.binary("ashr", e.binary("shl", signed, 24 - 8 * byte), 24)
        total = e.add(total, e.mul(number, weight))
    return total


def take_signs(e: FunctionEmitter, instruction: str, numbers: Value, signs: Value, lanes: int) -> Value:
    """Return words whose bytes, from -127 on, are multiplied by -1 where those of others are negative; beside 0, they
    are any."""
    if instruction == "pmaddubsw" and lanes in _SIGNS:
        bytes_ = [_parts(e, e.broadcast(word, lanes), "i8") for word in (numbers, signs)]
        parts = bytes_[0].lanes
        call = e.call(_SIGNS[lanes], vector_type("i8", parts), *bytes_)
        return _parts(e, e.pure(call, "i8", parts, bytes_), "i32")
    numbers, signs = (_parts(e, e.broadcast(word, lanes), "i8") for word in (numbers, signs))
    negative = e.compare("slt", signs, 0)
    return _parts(e, e.select(negative, e.sub(0, numbers), numbers), "i32")


def magnitude(e: FunctionEmitter, signed: Value, lanes: int) -> Value:
    """Return words of the absolute values of bytes."""
    bytes_ = _parts(e, e.broadcast(signed, lanes), "i8")
    call = e.call(f"llvm.abs.v{bytes_.lanes}i8", vector_type("i8", bytes_.lanes), bytes_, literal(0, "i1"))
    return _parts(e, e.pure(call, "i8", bytes_.lanes, [bytes_]), "i32")


def _add_scalable(e: FunctionEmitter, total: Value, unsigned: Value, signed: Value) -> Value:
    operands = [to_scalable(e, total), *(to_scalable(e, _parts(e, word, "i8")) for word in (unsigned, signed))]
    call = e.call("llvm.aarch64.sve.usdot.nxv4i32", operands[0].text, *operands)
    return from_scalable(e, e.pure(call, operands[0].type, 1, operands), "i32", total.lanes)


def _add_pairs(e: FunctionEmitter, total: Value, unsigned: Value, signed: Value) -> Value:
    """Multiply bytes 0 and 2, then 1 and 3, widened to 16 bits: no sum is cut, as those of `pmaddubsw` are.

    Words that all lanes share are taken apart in vectors: to move each half from a scalar register takes longer.
    """
    lanes = total.lanes
    word, halves = (_parts(e, e.broadcast(each, lanes), "i16") for each in (unsigned, signed))
    numbers = [e.binary("and", word, 0xFF), e.binary("lshr", word, 8)]
    weights = [e.binary("ashr", e.binary("shl", halves, 8), 8), e.binary("ashr", halves, 8)]
    for pair in zip(numbers, weights, strict=True):
        total = e.add(total, _multiply_pairs(e, *pair))
    return total


def add_pairs_of_bytes(e: FunctionEmitter, total: Value, unsigned: Value, signed: Value) -> Value:
    """Return the total, of 16 bits, and two products of bytes for each lane. What 16 bits do not hold is cut."""
    words = total.lanes // 2
    bytes_ = [_parts(e, e.broadcast(word, words), "i8") for word in (unsigned, signed)]
    call = e.call(_BYTES[words], vector_type("i16", total.lanes), *bytes_)
    return e.add(total, e.pure(call, "i16", total.lanes, bytes_))


def sum_pairs(e: FunctionEmitter, pairs: Value) -> Value:
    """Return the sums of neighbours, of 32 bits."""
    ones = e.broadcast(literal(1, "i16"), pairs.lanes)
    return _multiply_pairs(e, pairs, ones)


def _multiply_pairs(e: FunctionEmitter, first: Value, second: Value) -> Value:
    lanes, operands = first.lanes // 2, (first, second)
    return e.pure(e.call(_PAIRS[lanes], vector_type("i32", lanes), *operands), "i32", lanes, operands)


def _parts(e: FunctionEmitter, value: Value, type_: str) -> Value:
    """Return the same bits as a vector of elements of another width."""
    bits = {"i8": 8, "i16": 16, "i32": 32}
    lanes = value.lanes * bits[value.type] // bits[type_]
    if value.type == type_:
        return value
    return e.pure(f"bitcast {value.typed} to {vector_type(type_, lanes)}", type_, lanes, [value])
