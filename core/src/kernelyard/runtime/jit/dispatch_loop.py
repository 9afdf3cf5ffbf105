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
from kernelyard.runtime.abi.memory import REBIND_ALIGNMENT
from kernelyard.runtime.jit.linking import compile_text

_TABLE_NAME = "kernelyard_run_table"
_TIMED_NAME = "kernelyard_time_table"
_WITHIN_NAME = "kernelyard_run_table_within"
_ENTER_NAME = "kernelyard_enter"

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


_TABLE_IR = _walker(_TABLE_NAME, "ptr %table")
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

# `self` is the address of an entry: its head, its inputs, its outputs. Arguments that are not arrays of exactly these
# types, shapes and the dense layout make it answer None, before anything has happened. An input with slots, which are
# at least one after their number, is not copied: its address is written there. The structs of Python and NumPy are
# those of their C ABIs; `fast_call` makes sure of them before it uses this.
_ENTER_IR = f"""
%head = type {{ i64, i64, ptr, ptr }} ; inputs, outputs, table, fail
%input = type {{ ptr, i64, ptr, i64, ptr, ptr }} ; descr, nd, dims, nbytes, buffer, slots
%object = type {{ i64, ptr }} ; reference count, type
%array = type {{ %object, ptr, i32, ptr, ptr, ptr, ptr, i32 }} ; data, nd, dims, strides, base, descr, flags

@PyArray_Type = external global i8
@_Py_NoneStruct = external global i8
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_CallObject(ptr, ptr)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @memcmp(ptr, ptr, i64)
declare ptr @memcpy(ptr, ptr, i64)

define ptr @{_ENTER_NAME}(ptr %self, ptr %args, i64 %given) {{
entry:
  %head = call ptr @PyLong_AsVoidPtr(ptr %self)
  %inputs = load i64, ptr %head
  %p_outputs = getelementptr %head, ptr %head, i64 0, i32 1
  %outputs = load i64, ptr %p_outputs
  %p_table = getelementptr %head, ptr %head, i64 0, i32 2
  %table = load ptr, ptr %p_table
  %first_input = getelementptr %head, ptr %head, i64 1
  %first_output = getelementptr %input, ptr %first_input, i64 %inputs
  %as_many = icmp eq i64 %given, %inputs
  br i1 %as_many, label %check_next, label %decline

check_next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %input_fits ]
  %all_checked = icmp eq i64 %i, %inputs
  br i1 %all_checked, label %copy_next, label %check
check:
  %input = getelementptr %input, ptr %first_input, i64 %i
  %p_arg = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %p_arg
  %p_type = getelementptr %object, ptr %arg, i64 0, i32 1
  %type = load ptr, ptr %p_type
  %is_array = icmp eq ptr %type, @PyArray_Type
  br i1 %is_array, label %array, label %decline
array:
  %p_descr = getelementptr %array, ptr %arg, i64 0, i32 6
  %descr = load ptr, ptr %p_descr
  %wanted_descr = load ptr, ptr %input
  %same_descr = icmp eq ptr %descr, %wanted_descr
  %p_nd = getelementptr %array, ptr %arg, i64 0, i32 2
  %nd = load i32, ptr %p_nd
  %rank = sext i32 %nd to i64
  %p_wanted_rank = getelementptr %input, ptr %input, i64 0, i32 1
  %wanted_rank = load i64, ptr %p_wanted_rank
  %same_rank = icmp eq i64 %rank, %wanted_rank
  %p_flags = getelementptr %array, ptr %arg, i64 0, i32 7
  %flags = load i32, ptr %p_flags
  %c_contiguous = trunc i32 %flags to i1
  %fits_0 = and i1 %same_descr, %same_rank
  %fits_1 = and i1 %fits_0, %c_contiguous
  br i1 %fits_1, label %compare, label %decline
compare:
  %p_dims = getelementptr %array, ptr %arg, i64 0, i32 3
  %dims = load ptr, ptr %p_dims
  %p_wanted_dims = getelementptr %input, ptr %input, i64 0, i32 2
  %wanted_dims = load ptr, ptr %p_wanted_dims
  %dims_size = shl i64 %rank, 3
  %difference = call i32 @memcmp(ptr %dims, ptr %wanted_dims, i64 %dims_size)
  %same_dims = icmp eq i32 %difference, 0
  br i1 %same_dims, label %dims_fit, label %decline
dims_fit:
  %p_checked_slots = getelementptr %input, ptr %input, i64 0, i32 5
  %checked_slots = load ptr, ptr %p_checked_slots
  %is_copied = icmp eq ptr %checked_slots, null
  %p_place = getelementptr %array, ptr %arg, i64 0, i32 1
  %place = load i64, ptr %p_place
  %below = and i64 %place, {REBIND_ALIGNMENT - 1}
  %is_aligned = icmp eq i64 %below, 0
  %has_place = or i1 %is_copied, %is_aligned
  br i1 %has_place, label %input_fits, label %decline
input_fits:
  %i_next = add i64 %i, 1
  br label %check_next

copy_next:
  %j = phi i64 [ 0, %check_next ], [ %j_next, %taken ]
  %all_copied = icmp eq i64 %j, %inputs
  br i1 %all_copied, label %run, label %take
take:
  %source = getelementptr %input, ptr %first_input, i64 %j
  %p_source_arg = getelementptr ptr, ptr %args, i64 %j
  %source_arg = load ptr, ptr %p_source_arg
  %p_data = getelementptr %array, ptr %source_arg, i64 0, i32 1
  %data = load ptr, ptr %p_data
  %p_slots = getelementptr %input, ptr %source, i64 0, i32 5
  %slots = load ptr, ptr %p_slots
  %has_slots = icmp ne ptr %slots, null
  br i1 %has_slots, label %move, label %copy
move:
  %slot_count = load i64, ptr %slots
  br label %move_next
move_next:
  %s = phi i64 [ 0, %move ], [ %s_next, %move_next ]
  %s_next = add i64 %s, 1
  %p_slot = getelementptr ptr, ptr %slots, i64 %s_next
  %slot = load ptr, ptr %p_slot
  store ptr %data, ptr %slot
  %all_moved = icmp eq i64 %s_next, %slot_count
  br i1 %all_moved, label %taken, label %move_next
copy:
  %p_nbytes = getelementptr %input, ptr %source, i64 0, i32 3
  %nbytes = load i64, ptr %p_nbytes
  %p_buffer = getelementptr %input, ptr %source, i64 0, i32 4
  %buffer = load ptr, ptr %p_buffer
  %copied = call ptr @memcpy(ptr %buffer, ptr %data, i64 %nbytes)
  br label %taken
taken:
  %j_next = add i64 %j, 1
  br label %copy_next

run:
  %thread = call ptr @PyEval_SaveThread()
  %answer = call i64 @{_TABLE_NAME}(ptr %table)
  call void @PyEval_RestoreThread(ptr %thread)
  %success = icmp eq i64 %answer, 0
  br i1 %success, label %succeed, label %fail
fail:
  %p_fail = getelementptr %head, ptr %head, i64 0, i32 3
  %fail_function = load ptr, ptr %p_fail
  %number = call ptr @PyLong_FromLongLong(i64 %answer)
  %raised = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %fail_function, ptr %number, ptr null)
  call void @Py_DecRef(ptr %number)
  ret ptr %raised

succeed:
  %results = call ptr @PyTuple_New(i64 %outputs)
  %no_results = icmp eq ptr %results, null
  br i1 %no_results, label %out_of_memory, label %result_next
result_next:
  %k = phi i64 [ 0, %succeed ], [ %k_next, %put ]
  %all_made = icmp eq i64 %k, %outputs
  br i1 %all_made, label %done, label %make
make:
  %p_copy = getelementptr ptr, ptr %first_output, i64 %k
  %copy_method = load ptr, ptr %p_copy
  %result = call ptr @PyObject_CallObject(ptr %copy_method, ptr null)
  %no_result = icmp eq ptr %result, null
  br i1 %no_result, label %drop, label %put
put:
  %was_put = call i32 @PyTuple_SetItem(ptr %results, i64 %k, ptr %result)
  %k_next = add i64 %k, 1
  br label %result_next
done:
  ret ptr %results
drop:
  call void @Py_DecRef(ptr %results)
  ret ptr null
out_of_memory:
  ret ptr null

decline:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}}
"""


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
    names = (_TABLE_NAME, _TIMED_NAME, _WITHIN_NAME, _ENTER_NAME)
    code = compile_text(_RECORD_IR + _TABLE_IR + _TIMED_IR + _WITHIN_IR + _ENTER_IR, imports, names)
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
