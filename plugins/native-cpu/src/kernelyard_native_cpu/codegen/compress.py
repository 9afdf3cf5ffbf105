"""Lanes of a vector that a mask chooses, moved side by side: by one instruction, or by a table of permutations."""

from __future__ import annotations

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Value, mangle_type, vector_type
from kernelyard_native_cpu.codegen.scalable import from_scalable, to_scalable
from kernelyard_native_cpu.machine import Compression

_WORDS = 8  # of 32 bits, in a vector of 256


def lane_bits(e: FunctionEmitter, mask: Value) -> Value:
    """Return a mask as an integer of 32 bits: a bit for each lane."""
    bits = e.pure(f"bitcast {mask.typed} to i{mask.lanes}", f"i{mask.lanes}", 1, [mask])
    return e.convert("zext", bits, "i32")


def count_lanes(e: FunctionEmitter, mask: Value) -> Value:
    """Return how many lanes a mask chooses, as an i64."""
    return e.convert("zext", e.intrinsic("ctpop", lane_bits(e, mask)), "i64")


def compress(e: FunctionEmitter, vector: Value, mask: Value, instruction: str) -> Value:
    """Return the chosen lanes of a vector, in order, before lanes of any content; instruction: see `Compression`."""
    if instruction == "sve.compact":
        return _compact(e, vector, mask)
    if instruction == "vpcompress":
        name = f"llvm.experimental.vector.compress.{mangle_type(vector.type, vector.lanes)}"
        rest = Value("poison", vector.type, vector.lanes)
        return e.pure(e.call(name, vector.text, vector, mask, rest), vector.type, vector.lanes, [vector, mask])
    row = e.element(_table(e, vector.lanes), e.convert("zext", lane_bits(e, mask), "i64"), f"<{_WORDS} x i8>")
    load = f"load <{_WORDS} x i8>, ptr {row.ref}, align {_WORDS}, !invariant.load !0"
    order = e.convert("zext", e.pure(load, "i8", _WORDS, [row]), "i32")
    words = _bitcast(e, vector, "i32", _WORDS)
    moved = e.pure(e.call("llvm.x86.avx2.permd", words.text, words, order), "i32", _WORDS, [words, order])
    return _bitcast(e, moved, vector.type, vector.lanes)


def _compact(e: FunctionEmitter, vector: Value, mask: Value) -> Value:
    bits = BITS[vector.type]
    operands = [to_scalable(e, mask, bits), to_scalable(e, vector)]
    name = f"llvm.aarch64.sve.compact.nxv{128 // bits}{vector.type}"
    moved = e.pure(e.call(name, operands[1].text, *operands), operands[1].type, 1, operands)
    return from_scalable(e, moved, vector.type, vector.lanes)


def store_compressed(e: FunctionEmitter, vector: Value, mask: Value, place: Value, compression: Compression) -> None:
    """Write the chosen lanes of a vector side by side, and anything in as many lanes behind them."""
    lanes = min(vector.lanes, compression.bits // BITS[vector.type])
    for start in range(0, vector.lanes, lanes):
        order = range(start, start + lanes)
        chosen = e.shuffle(mask, mask, order) if lanes < vector.lanes else mask
        part = e.shuffle(vector, vector, order) if lanes < vector.lanes else vector
        e.store(compress(e, part, chosen, compression.instruction), place)
        place = e.element(place, count_lanes(e, chosen), vector.type)


def _bitcast(e: FunctionEmitter, vector: Value, type_: str, lanes: int) -> Value:
    if vector.type == type_:
        return vector
    return e.pure(f"bitcast {vector.typed} to {vector_type(type_, lanes)}", type_, lanes, [vector])


def _table(e: FunctionEmitter, lanes: int) -> Value:
    """Return the address of a row for each mask: which words of 32 bits come first, for lanes of as many bits or 64."""
    name = f"compress.{lanes}"
    if name not in e.declarations:
        rows = [_row(bits, lanes) for bits in range(1 << lanes)]
        entries = ", ".join(f"<{_WORDS} x i8> <{', '.join(f'i8 {n}' for n in row)}>" for row in rows)
        e.declarations[name] = f"@{name} = internal constant [{len(rows)} x <{_WORDS} x i8>] [{entries}]"
    return Value(f"@{name}", "ptr")


def _row(bits: int, lanes: int) -> list[int]:
    words = _WORDS // lanes
    chosen = sorted(range(lanes), key=lambda lane: not bits >> lane & 1)
    return [lane * words + word for lane in chosen for word in range(words)]
