"""The dispatch loop: the native code that the run time itself consists of, compiled once and kept in the cache.

`kernelyard_run_table` walks a table of native calls, `kernelyard_time_table` does it with a clock, and
`kernelyard_run_table_within` ends early where the call is cancelled or late. `kernelyard_enter`
is a Python built-in around it: it takes NumPy arrays in, runs a table, and gives NumPy arrays out, so that a call of a
small program is not spent on getting there. All are the same for every program. The first time they take llvmlite;
where it is absent, `call_table` and `fast_call` do the same in Python.
"""

from __future__ import annotations

import ctypes
import threading
import time
from functools import cache

from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.jit.array_entry import ENTER_IR, ENTER_NAME, RUN_TABLE_NAME
from kernelyard.runtime.jit.linking import compile_text

_TIMED_NAME = "kernelyard_time_table"
_WITHIN_NAME = "kernelyard_run_table_within"

# A table is 64-bit words: the number of records, then five words for each: function, a, b, n, d. A record without a
# function is a jump: to record n where the byte at `a` is 0, and always where there is no `a`. The answer is 0, or
# the failing record's number + 1 in the upper and the function's status in the lower 32 bits. The timed one, which is
# for tables without jumps, also writes when each record began and when the last one ended: seconds and nanoseconds, two
# words each. The limited one asks before each record whether a word is not 0, and whether the monotonic clock has come
# to a number of nanoseconds, if that is not 0; the answer is then CANCELLED or LATE.
TABLE_WORDS = 5
CANCELLED, LATE = 1, 2
_RECORD_IR = """
%record = type { ptr, ptr, ptr, i64, ptr }
declare i32 @clock_gettime(i32, ptr)
"""


def _walker(name: str, parameters: str, first: str = "", before: str = "", after: str = "") -> str:
    """Return a function that walks a table; first: once, before: each record `%i`, after: all of them."""
    return f"""
define i64 @{name}({parameters}) {{
entry:
  {first}
  %count = load i64, ptr %table
  %records = getelementptr i64, ptr %table, i64 1
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %call, label %done
call:
  %i = phi i64 [ 0, %entry ], [ %following, %good ]
  {before}
  %record = getelementptr %record, ptr %records, i64 %i
  %function = load ptr, ptr %record
  %pa = getelementptr %record, ptr %record, i64 0, i32 1
  %a = load ptr, ptr %pa
  %pb = getelementptr %record, ptr %record, i64 0, i32 2
  %b = load ptr, ptr %pb
  %pn = getelementptr %record, ptr %record, i64 0, i32 3
  %n64 = load i64, ptr %pn
  %is_jump = icmp eq ptr %function, null
  br i1 %is_jump, label %jump, label %step
step:
  %n = trunc i64 %n64 to i32
  %pd = getelementptr %record, ptr %record, i64 0, i32 4
  %d = load ptr, ptr %pd
  %status = call i32 %function(ptr %a, ptr %b, i32 %n, ptr %d)
  %next = add i64 %i, 1
  %success = icmp eq i32 %status, 0
  br i1 %success, label %good, label %bad
jump:
  %always = icmp eq ptr %a, null
  br i1 %always, label %good, label %decide
decide:
  %truth = load i8, ptr %a
  %holds = icmp ne i8 %truth, 0
  %after = add i64 %i, 1
  %chosen = select i1 %holds, i64 %after, i64 %n64
  br label %good
good:
  %following = phi i64 [ %next, %step ], [ %n64, %jump ], [ %chosen, %decide ]
  %more = icmp slt i64 %following, %count
  br i1 %more, label %call, label %done
bad:
  %high = shl i64 %next, 32
  %low = zext i32 %status to i64
  %answer = or i64 %high, %low
  ret i64 %answer
done:
  {after}
  ret i64 0
}}
"""


def _stamp(name: str, number: str) -> str:
    """Read the clock into a place of `%times`, each of which has two words."""
    return f"""%{name} = getelementptr [2 x i64], ptr %times, i64 {number}
  %{name}_read = call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %{name})"""


_TABLE_IR = _walker(RUN_TABLE_NAME, "ptr %table")
_TIMED_IR = _walker(_TIMED_NAME, "ptr %table, ptr %times", before=_stamp("start", "%i"), after=_stamp("end", "%count"))
_WITHIN_IR = _walker(
    _WITHIN_NAME,
    "ptr %table, ptr %flag, i64 %deadline",
    first="""%times = alloca [2 x i64]
  %is_timed = icmp ne i64 %deadline, 0""",
    before=f"""
  %cancelled = load atomic i64, ptr %flag monotonic, align 8
  %is_cancelled = icmp ne i64 %cancelled, 0
  br i1 %is_cancelled, label %cancel, label %proceed
cancel:
  ret i64 {CANCELLED}
proceed:
  br i1 %is_timed, label %ask, label %go
ask:
  {_stamp("time", "0")}
  %seconds = load i64, ptr %time
  %p_nanoseconds = getelementptr i64, ptr %time, i64 1
  %nanoseconds = load i64, ptr %p_nanoseconds
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %nanoseconds
  %is_late = icmp sge i64 %now, %deadline
  br i1 %is_late, label %late, label %go
late:
  ret i64 {LATE}
go:""",
)


class DispatchLoop(NamedTuple):
    """Addresses of the functions."""

    run_table: int
    time_table: int
    run_table_within: int
    enter: int


_lock = renewed_in_children(threading.Lock())
_KEPT: list[object] = []  # the code's owners: it lives as long as the process


def dispatch_loop() -> DispatchLoop | None:
    """Return the process's dispatch loop; None where nothing could compile it."""
    with _lock:
        return _compile()


@cache
def _compile() -> DispatchLoop | None:
    import numpy as np

    imports = {"PyArray_Type": id(np.ndarray), "_Py_NoneStruct": id(None)}
    imports |= {name: _address_of(ctypes.pythonapi, name) for name in _FROM_PYTHON}
    imports |= {name: _address_of(ctypes.CDLL(None), name) for name in _FROM_C}
    names = (RUN_TABLE_NAME, _TIMED_NAME, _WITHIN_NAME, ENTER_NAME)
    code = compile_text(_RECORD_IR + _TABLE_IR + _TIMED_IR + _WITHIN_IR + ENTER_IR, imports, names)
    if code is None:
        return None
    _KEPT.append(code.owner)
    return DispatchLoop(*(code.addresses[name] for name in names))


_FROM_C = ("clock_gettime", "memcmp", "memcpy")
_FROM_PYTHON = (
    "PyLong_AsVoidPtr",
    "PyLong_FromLongLong",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyObject_CallObject",
    "PyObject_CallFunctionObjArgs",
    "PyTuple_New",
    "PyTuple_SetItem",
    "Py_IncRef",
    "Py_DecRef",
)


def _address_of(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
