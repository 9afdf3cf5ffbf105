"""CallTable: a program's steps as one table of native calls, walked by one fixed runner.

The runner is 25 lines of LLVM IR, the same for every program, compiled once per process (a few milliseconds). Without
llvmlite the same table is walked through ctypes. The interpreter lock is free while native calls run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import TypeAlias

from kernelyard.errors import ExecutionError
from kernelyard.runtime.module import NativeCall, Step

# A table is 64-bit words: the number of records, then five words for each: function, a, b, n, d. The runner answers 0,
# or the failing record's number + 1 in the upper and the function's status in the lower 32 bits.
_WORDS = 5
_ERROR_RAISED = -1  # the status of a function of tvm-ffi that left an error behind
_RUNNER_NAME = "kernelyard_run_table"
_RUNNER_IR = f"""
%record = type {{ ptr, ptr, ptr, i64, ptr }}
define i64 @{_RUNNER_NAME}(ptr %table) {{
entry:
  %count = load i64, ptr %table
  %records = getelementptr i64, ptr %table, i64 1
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %call, label %done
call:
  %i = phi i64 [ 0, %entry ], [ %next, %good ]
  %record = getelementptr %record, ptr %records, i64 %i
  %function = load ptr, ptr %record
  %pa = getelementptr %record, ptr %record, i64 0, i32 1
  %a = load ptr, ptr %pa
  %pb = getelementptr %record, ptr %record, i64 0, i32 2
  %b = load ptr, ptr %pb
  %pn = getelementptr %record, ptr %record, i64 0, i32 3
  %n64 = load i64, ptr %pn
  %n = trunc i64 %n64 to i32
  %pd = getelementptr %record, ptr %record, i64 0, i32 4
  %d = load ptr, ptr %pd
  %status = call i32 %function(ptr %a, ptr %b, i32 %n, ptr %d)
  %next = add i64 %i, 1
  %success = icmp eq i32 %status, 0
  br i1 %success, label %good, label %bad
good:
  %more = icmp slt i64 %next, %count
  br i1 %more, label %call, label %done
bad:
  %high = shl i64 %next, 32
  %low = zext i32 %status to i64
  %answer = or i64 %high, %low
  ret i64 %answer
done:
  ret i64 0
}}
"""

Runner: TypeAlias = Callable[[ctypes.c_void_p], int]
Run: TypeAlias = Callable[[], None]
_lock = threading.Lock()


@cache
def _compiled_runner() -> Runner:
    # llvmlite is what code generators bring along; a library-only installation may well be without it.
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return _walk_with_ctypes
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    text = f'target triple = "{llvm.get_process_triple()}"\n{_RUNNER_IR}'
    linker = llvm.create_lljit_compiler(machine)
    library = llvm.JITLibraryBuilder().add_ir(text).export_symbol(_RUNNER_NAME).link(linker, _RUNNER_NAME)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library[_RUNNER_NAME])
    _KEPT.append((linker, library))
    return function


_KEPT: list[object] = []  # the code's owners: it lives as long as the process


def runner() -> Runner:
    """The process's runner: `runner()(table)`."""
    with _lock:
        return _compiled_runner()


_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)


def _walk_with_ctypes(table: ctypes.c_void_p) -> int:
    address = table.value or 0
    count = ctypes.c_int64.from_address(address).value
    words = (ctypes.c_int64 * (1 + _WORDS * count)).from_address(address)
    for record in range(count):
        function, a, b, n, d = words[1 + _WORDS * record : 1 + _WORDS * (record + 1)]
        status = _PROTOTYPE(function)(a, b, n, d)
        if status:
            return (record + 1) << 32 | (status & 0xFFFFFFFF)
    return 0


class CallTable:
    """Steps in order; runs of native calls become tables, Python steps run between them.

    labels: what each step is, for messages. Raises (when run): ExecutionError naming the step that failed.
    """

    def __init__(self, steps: Sequence[Step], labels: Sequence[str] | None = None) -> None:
        self._labels = tuple(labels) if labels is not None else tuple(f"step {i}" for i in range(len(steps)))
        if len(self._labels) != len(steps):
            raise ValueError(f"{len(self._labels)} labels for {len(steps)} steps")
        self._tables: list[object] = []
        self._segments = self._make_segments(steps)
        self.is_native = all(isinstance(step, NativeCall) for step in steps)
        # The usual program is one table: then running is this one call.
        self.run: Run = self._segments[0] if len(self._segments) == 1 else self._run_segments

    def _make_segments(self, steps: Sequence[Step]) -> list[Run]:
        segments: list[Run] = []
        numbered = groupby(enumerate(steps), key=lambda item: isinstance(item[1], NativeCall))
        for is_native, group in numbered:
            members = list(group)
            if is_native:
                calls = [step for _, step in members if isinstance(step, NativeCall)]
                segments.append(self._native_segment(calls, members[0][0]))
            else:
                segments += [
                    partial(self._run_python, step, number)
                    for number, step in members
                    if not isinstance(step, NativeCall)
                ]
        return segments

    def _native_segment(self, calls: Sequence[NativeCall], first: int) -> Run:
        words = [len(calls), *(_signed(word) for call in calls for word in call)]
        table = (ctypes.c_int64 * len(words))(*words)
        self._tables.append(table)
        # A pointer object made once: making one from an integer takes longer than the call itself.
        run, pointer, fail = runner(), ctypes.c_void_p(ctypes.addressof(table)), self._fail

        def run_native() -> None:
            answer = run(pointer)
            if answer:
                fail(first, answer)

        return run_native

    def _fail(self, first: int, answer: int) -> None:
        status = ctypes.c_int32(answer & 0xFFFFFFFF).value
        said = _raised() if status == _ERROR_RAISED else None
        raise ExecutionError(
            "a native step failed", where=self._labels[first + (answer >> 32) - 1], found=said or f"status {status}"
        )

    def _run_python(self, step: Run, number: int) -> None:
        try:
            step()
        except ExecutionError:
            raise
        except Exception as error:
            raise ExecutionError(
                "a step failed", where=self._labels[number], found=f"{type(error).__name__}: {error}"
            ) from error

    def _run_segments(self) -> None:
        for segment in self._segments:
            segment()


def _raised() -> str | None:
    """What a function with the calling convention of tvm-ffi says of its failure."""
    from kernelyard.runtime.extern_library import take_raised

    return take_raised()


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
