"""Vectors as LLVM's scalable types, which instructions of SVE take; where the length is known, this costs nothing."""

from __future__ import annotations

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Value, mangle_type

_GRANULE = 128  # bits for each unit of `vscale`


def to_scalable(e: FunctionEmitter, vector: Value, bits: int = 0) -> Value:
    """Return a vector of at most SVE's length as the first lanes of a scalable one; bits: of lanes that it masks."""
    count = _GRANULE // (bits or BITS[vector.type])
    type_ = f"<vscale x {count} x {vector.type}>"
    name = f"llvm.vector.insert.nxv{count}{mangle_type(vector.type, 1)}.{mangle_type(vector.type, vector.lanes)}"
    call = e.call(name, type_, Value("poison", type_), vector, Value("0", "i64"))
    return e.pure(call, type_, 1, [vector])


def from_scalable(e: FunctionEmitter, scalable: Value, type_: str, lanes: int) -> Value:
    """Return the first lanes of a scalable vector."""
    vector = Value("poison", type_, lanes)
    name = f"llvm.vector.extract.{mangle_type(type_, lanes)}.nxv{_GRANULE // BITS[type_]}{mangle_type(type_, 1)}"
    return e.pure(e.call(name, vector.text, scalable, Value("0", "i64")), type_, lanes, [scalable])
