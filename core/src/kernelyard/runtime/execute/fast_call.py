"""FastCall: a Python built-in, made while the program runs, that takes NumPy arrays through a native table.

Checking arguments, copying small tensors and calling a C function take a microsecond or two in Python. In native code
(`jit.dispatch_loop`) they take a tenth of that, which is what a small program's call consists of.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.memory import address_of
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.jit.dispatch_loop import dispatch_loop

_METH_FASTCALL = 0x80

FastCall = Callable[..., "Sequence[np.ndarray] | None"]


class FastCallInput(NamedTuple):
    """Required shape and dtype of an argument, and the buffer it is copied to; None for one that nothing reads.

    slots: where its address is written instead.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    buffer: np.ndarray | None
    slots: tuple[int, ...] = ()


class FastCallResult(NamedTuple):
    """A result: `make()` returns its array, after the run: a copy of where the steps write.

    slots: where the address of the array is written; then it is made before the run.
    """

    make: Callable[[], np.ndarray]
    slots: tuple[int, ...] = ()


def fast_call(table: CallTable, inputs: Sequence[FastCallInput], results: Sequence[FastCallResult]) -> FastCall | None:
    """Return a function that takes its arguments in, runs `table`, and gives the results.

    It answers None, and has done nothing, where an argument is no dense NumPy array of the very shape and dtype. There
    is no such function where llvmlite is absent, where steps are not native, or for an unknown Python.
    Raises (when called): ExecutionError naming the step that failed, MemoryError.
    """
    address = table.address
    if address is None or not _structs_are_known():
        return None
    code = dispatch_loop()
    if code is None:
        return None
    keep: list[Any] = [table, table.fail, *inputs, *results]
    words: list[int] = [len(inputs), len(results), address, id(keep[1])]
    for shape, dtype, buffer, slots in inputs:
        dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        place = (buffer.nbytes, address_of(buffer)) if buffer is not None else (0, ctypes.addressof(dims))
        counted = _prefix_count(slots)
        keep += [dims, dtype, counted]
        words += [id(dtype), len(shape), ctypes.addressof(dims), *place, ctypes.addressof(counted) if slots else 0]
    for make, slots in results:
        counted = _prefix_count(slots)
        keep.append(counted)
        words += [id(make), ctypes.addressof(counted) if slots else 0]
    record = (ctypes.c_int64 * len(words))(*words)
    return _builtin(code.enter, ctypes.addressof(record), (*keep, record))


def _prefix_count(slots: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * (1 + len(slots)))(len(slots), *slots)


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def _method(function: int) -> _MethodDef:
    return _MethodDef(b"fast_call", function, _METH_FASTCALL, None)


def _builtin(function: int, record: int, keep: object) -> FastCall:
    """Return a built-in that gets a record's address; it owns `keep`, in the place of the module that it comes from."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    return make(ctypes.addressof(_method(function)), record, keep)


@cache
def _structs_are_known() -> bool:
    """Check on known arrays that CPython's and NumPy's structs have the layout that the dispatch loop reads."""
    if sys.implementation.name != "cpython":
        return False
    # The objects of a free-threaded Python begin with more than a count and a type.
    if object.__basicsize__ != 16 or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    dense = np.empty((2, 3), np.float32)
    return _is_known(dense) and _is_known(dense[:, 1:])


def _is_known(array: np.ndarray) -> bool:
    start, rank = id(array), array.ndim
    words = (ctypes.c_int64 * 9).from_address(start)
    dims = (ctypes.c_int64 * rank).from_address(words[4]) if words[3] & 0xFFFFFFFF == rank else ()
    flags = words[8] & 0xFFFFFFFF
    return (
        (words[1], words[2], words[7]) == (id(np.ndarray), array.ctypes.data, id(array.dtype))
        and tuple(dims) == array.shape
        and bool(flags & 1) == array.flags.c_contiguous
    )
