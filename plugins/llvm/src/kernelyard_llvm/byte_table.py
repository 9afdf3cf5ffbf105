"""A kernel that looks bytes up in a table of 256: in registers with AVX-512 VBMI, else one after the other."""

from __future__ import annotations

from enum import IntEnum, auto
from functools import cache

from kernelyard.runtime.jit.linking import Code, compile_text
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.module import module_text
from kernelyard_llvm.values import Value, int_literal

FEATURES = (
    "avx",
    "avx2",
    "bmi",
    "bmi2",
    "fma",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512f",
    "avx512vbmi",
    "avx512vl",
)
LANES = 64  # bytes of a vector
_TWO_REGISTERS = "llvm.x86.avx512.vpermi2var.qi.512"

_RUN = """
define i32 @run(ptr %record, ptr %unused, i32 %threads, ptr %also_unused) {
  call void @look_up(ptr %record)
  ret i32 0
}
"""


class Field(IntEnum):
    """Places in the record: the addresses of the bytes, the table and the result; how many bytes there are."""

    SOURCE = 0
    TABLE = auto()
    RESULT = auto()
    SCRATCH = auto()
    COUNT = auto()
    LENGTH = auto()


@cache
def byte_table_kernel(has_vbmi: bool) -> Code | None:
    """Return `int32_t run(int64_t* record, _, _, _)`, the record being by `Field`; None where there is no llvmlite.

    The result may lie over the source.
    """
    return compile_text(byte_table_text(has_vbmi), {}, ("run",), FEATURES if has_vbmi else ())


def byte_table_text(has_vbmi: bool) -> str:
    """Return the kernel as LLVM assembly."""
    record = Value("%record", "ptr")
    f = FunctionEmitter((record,))
    source, table, result = (_field(f, record, field, "ptr") for field in (Field.SOURCE, Field.TABLE, Field.RESULT))
    count = _field(f, record, Field.COUNT, "i64")
    done: Value = int_literal(0)
    if has_vbmi:
        done = f.binary("and", count, -LANES)
        parts = [f.load(f.element(table, LANES * part, "i8"), LANES, type_="i8") for part in range(4)]
        with f.loop(0, done, step=LANES) as (start, _):
            places = f.load(f.element(source, start, "i8"), LANES, type_="i8")
            f.store(look_up_bytes(f, parts, places), f.element(result, start, "i8"))
    with f.loop(done, count) as (place, _):
        entry = f.convert("zext", f.load(f.element(source, place, "i8"), type_="i8"), "i64")
        f.store(f.load(f.element(table, entry, "i8"), type_="i8"), f.element(result, place, "i8"))
    return module_text([f.finish("look_up", is_internal=True)], f.declarations, 512 if has_vbmi else 128) + _RUN


def look_up_bytes(f: FunctionEmitter, table: list[Value], places: Value) -> Value:
    """Return the entries of a table in four registers at 64 places; an instruction looks up in two, by seven bits."""
    low, high = (
        f.pure(f.call(_TWO_REGISTERS, places.text, first, places, second), "i8", LANES, [first, places, second])
        for first, second in (table[:2], table[2:])
    )
    return f.select(f.compare("slt", places, 0), high, low)


def _field(f: FunctionEmitter, record: Value, field: int, type_: str) -> Value:
    place = f.element(record, int(field), "i64")
    return f.pure(f.load_text(place, type_, 1), type_, 1, [place])
