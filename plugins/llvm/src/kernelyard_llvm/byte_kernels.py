"""Share the frame of kernels on bytes: a record of addresses and numbers, a team of threads, rounding as stored.

A kernel is `int32_t run(int64_t* record, _, int32_t threads, _)`. Its module has a function `work(record, member,
members)`, which does one thread's part.
"""

from __future__ import annotations

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, literal

FEATURES = ("avx", "avx2", "bmi", "bmi2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")
RECORD, MEMBER, MEMBERS = Value("%record", "ptr"), Value("%member", "i64"), Value("%members", "i64")
RUN = """
define i32 @run(ptr %record, ptr %unused, i32 %threads, ptr %also_unused) #0 {
  %is_alone = icmp eq i32 %threads, 1
  br i1 %is_alone, label %alone, label %team
alone:
  call void @work(ptr %record, i64 0, i64 1)
  ret i32 0
team:
  call void @GOMP_parallel(ptr @member, ptr %record, i32 %threads, i32 0)
  ret i32 0
}
declare void @GOMP_parallel(ptr, ptr, i32, i32)"""
_ROUNDS = {16: "avx512.mask.cvtps2dq.512", 8: "avx.cvt.ps2dq.256", 4: "sse2.cvtps2dq"}


def member_text(used: dict[str, str]) -> str:
    """Return `member(record)`: what each thread of a parallel region calls. used: the module's declarations."""
    f = FunctionEmitter([RECORD], used)
    numbers = [f.here(f.call(f"omp_get_{what}", "i32"), "i32") for what in ("thread_num", "num_threads")]
    arguments = ", ".join(each.typed for each in (RECORD, *(f.convert("zext", each, "i64") for each in numbers)))
    f.line(f"call void @work({arguments})")
    return f.finish("member", is_internal=True)


def rows_of_member(f: FunctionEmitter, rows: Value) -> tuple[Value, Value]:
    """Return the first row of one thread's part, and the one behind its last."""
    begin, end = (f.binary("udiv", f.mul(rows, each), MEMBERS) for each in (MEMBER, f.add(MEMBER, 1)))
    return begin, end


def field(f: FunctionEmitter, place: int, type_: str = "i64") -> Value:
    """Return what stands at a place in the record; of a float, its bits."""
    address = f.element(RECORD, int(place), "i64")
    return f.pure(f.load_text(address, type_, 1), type_, 1, [address])


def cut(f: FunctionEmitter, order: str, value: Value, bound: Value) -> Value:
    """Return the value where it is in that order with the bound, and the bound elsewhere."""
    limit = f.broadcast(bound, value.lanes)
    return f.select(f.compare(order, value, limit), value, limit)


def round_to_int32(f: FunctionEmitter, real: Value) -> Value:
    """Return a vector of floats as int32, the nearest ones, as the processor is set to round."""
    operands = [real]
    if real.lanes == max(_ROUNDS):
        operands += [Value("poison", "i32", real.lanes), literal(-1, "i16"), literal(4, "i32")]
    text = f.call(f"llvm.x86.{_ROUNDS[real.lanes]}", f"<{real.lanes} x i32>", *operands)
    return f.pure(text, "i32", real.lanes, operands)
