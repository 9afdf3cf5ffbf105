"""Native functions that move bytes between the steps of a loop, as records of the dispatch loop's table.

Compiled once and kept in the cache, as the dispatch loop is.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from kernelyard.runtime.jit.linking import compile_text

# What `collect` keeps of a target, in words: its address, the bytes of an item, how many there are, and how many fit.
ADDRESS, ITEM_NBYTES, COUNT, CAPACITY = range(4)
WORDS = 4
# The status where items are too many or too few.
MISCOUNTED = 1

_NAMES = ("kernelyard_copy", "kernelyard_clear", "kernelyard_collect", "kernelyard_check_full")
_IR = f"""
%items = type {{ ptr, i64, i64, i64 }}
declare ptr @memcpy(ptr, ptr, i64)

define i32 @kernelyard_copy(ptr %target, ptr %source, i32 %unused, ptr %size) {{
  %nbytes = ptrtoint ptr %size to i64
  %copied = call ptr @memcpy(ptr %target, ptr %source, i64 %nbytes)
  ret i32 0
}}

define i32 @kernelyard_clear(ptr %items, ptr %b, i32 %n, ptr %d) {{
  %p_count = getelementptr %items, ptr %items, i64 0, i32 {COUNT}
  store i64 0, ptr %p_count
  ret i32 0
}}

define i32 @kernelyard_collect(ptr %items, ptr %source, i32 %n, ptr %d) {{
  %target = load ptr, ptr %items
  %p_nbytes = getelementptr %items, ptr %items, i64 0, i32 {ITEM_NBYTES}
  %nbytes = load i64, ptr %p_nbytes
  %p_count = getelementptr %items, ptr %items, i64 0, i32 {COUNT}
  %count = load i64, ptr %p_count
  %p_capacity = getelementptr %items, ptr %items, i64 0, i32 {CAPACITY}
  %capacity = load i64, ptr %p_capacity
  %has_room = icmp ult i64 %count, %capacity
  br i1 %has_room, label %put, label %full
put:
  %offset = mul i64 %count, %nbytes
  %place = getelementptr i8, ptr %target, i64 %offset
  %copied = call ptr @memcpy(ptr %place, ptr %source, i64 %nbytes)
  %more = add i64 %count, 1
  store i64 %more, ptr %p_count
  ret i32 0
full:
  ret i32 {MISCOUNTED}
}}

define i32 @kernelyard_check_full(ptr %items, ptr %b, i32 %n, ptr %d) {{
  %p_count = getelementptr %items, ptr %items, i64 0, i32 {COUNT}
  %count = load i64, ptr %p_count
  %p_capacity = getelementptr %items, ptr %items, i64 0, i32 {CAPACITY}
  %capacity = load i64, ptr %p_capacity
  %is_full = icmp eq i64 %count, %capacity
  %status = select i1 %is_full, i32 0, i32 {MISCOUNTED}
  ret i32 %status
}}
"""


class TransferFunctions(NamedTuple):
    """Addresses of the functions."""

    copy: int
    clear: int
    collect: int
    check_full: int


_KEPT: list[object] = []  # the code's owner: it lives as long as the process


@cache
def transfer_functions() -> TransferFunctions | None:
    """Return the process's functions; None where nothing could compile them."""
    memcpy = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value or 0
    code = compile_text(_IR, {"memcpy": memcpy}, _NAMES)
    if code is None:
        return None
    _KEPT.append(code.owner)
    return TransferFunctions(*(code.addresses[name] for name in _NAMES))
