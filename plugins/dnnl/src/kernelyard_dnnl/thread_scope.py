"""The number of OpenMP threads around a bound call: set before its primitives run, put back after.

Some implementations take the number of threads from their creation, others ask the environment when they run. The
environment belongs to the thread that runs the call, so it is set there: by two native calls in the call table.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int32, c_void_p
from functools import cache

from kernelyard.runtime.api import Code, NativeCall, Step, compile_text
from kernelyard_dnnl._native import Library

# enter(get, set, n, saved): *saved = get(); set(n).   leave(_, set, _, saved): set(*saved).
_IR = """
define i32 @enter(ptr %get, ptr %set, i32 %n, ptr %saved) {
  %before = call i32 %get()
  store i32 %before, ptr %saved
  call void %set(i32 %n)
  ret i32 0
}
define i32 @leave(ptr %get, ptr %set, i32 %n, ptr %saved) {
  %before = load i32, ptr %saved
  call void %set(i32 %before)
  ret i32 0
}
"""


@contextmanager
def thread_count(library: Library, count: int) -> Iterator[None]:
    """Set the number of threads of this Python thread for a while."""
    before = library.threads
    library.threads = count
    try:
        yield
    finally:
        library.threads = before


def scope_steps(library: Library, count: int, steps: list[Step]) -> tuple[list[Step], object]:
    """Return the steps with the number of threads set around them, and what must live as long as they do."""
    openmp = library.openmp
    if openmp is None:
        return steps, None
    code = _compile_scope()
    saved = c_int32()
    if code is not None:
        get, put = (ctypes.cast(function, c_void_p).value or 0 for function in openmp)
        place = ctypes.addressof(saved)
        enter = NativeCall(code.addresses["enter"], get, put, count, place)
        return [enter, *steps, NativeCall(code.addresses["leave"], get, put, count, place)], saved
    get_threads, set_threads = openmp

    def set_count() -> None:
        saved.value = get_threads()
        set_threads(count)

    def restore_count() -> None:
        set_threads(saved.value)

    return [set_count, *steps, restore_count], saved


@cache
def _compile_scope() -> Code | None:
    # Where nothing could compile them, the two steps run in Python.
    return compile_text(_IR, {}, ("enter", "leave"))
