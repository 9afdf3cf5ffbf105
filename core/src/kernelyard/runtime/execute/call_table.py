"""CallTable: a program's steps as one table of native calls, walked by one fixed dispatch loop (`jit.dispatch_loop`).

Without llvmlite the same table is walked through ctypes. The interpreter lock is free while native calls run.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np

from kernelyard.errors import ExecutionError, NoImplementationError, describe
from kernelyard.runtime.abi.module import NativeCall, Part, Step
from kernelyard.runtime.execute.step_errors import StepLabel, describe_step, step_error
from kernelyard.runtime.jit.dispatch_loop import CANCELLED, LATE, TABLE_WORDS, dispatch_loop

if TYPE_CHECKING:
    from kernelyard.runtime.execute.call_limit import CallLimit

_ERROR_RAISED = -1  # the status of a function of tvm-ffi that left an error behind
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)

Run: TypeAlias = Callable[[], object]
LimitedRun: TypeAlias = "Callable[[CallLimit | None], None]"


@cache
def table_walker() -> Callable[[ctypes.c_void_p], int]:
    """Return the process's function that walks a table, given a pointer to it."""
    compiled = dispatch_loop()
    if compiled is None:
        return _walk_with_ctypes
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(compiled.run_table)


@cache
def find_limited_table_walker() -> Callable[[ctypes.c_void_p, int, int], int]:
    """Return the same with a flag's address and a deadline, which end it early."""
    compiled = dispatch_loop()
    if compiled is None:
        return _walk_with_ctypes
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(compiled.run_table_within)


@cache
def table_timer() -> Callable[[int, int], int]:
    """Return the same with a place for the times."""
    compiled = dispatch_loop()
    if compiled is None:
        return _time_with_ctypes
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(compiled.time_table)


def _time_with_ctypes(table: int, times: int) -> int:
    count, size = ctypes.c_int64.from_address(table).value, 8 * TABLE_WORDS
    stamps = (ctypes.c_int64 * (2 * (count + 1))).from_address(times)
    for record in range(count):
        stamps[2 * record : 2 * record + 2] = divmod(time.perf_counter_ns(), 1_000_000_000)
        one = (ctypes.c_int64 * (1 + TABLE_WORDS))(1)
        ctypes.memmove(ctypes.addressof(one) + 8, table + 8 + size * record, size)
        answer = _walk_with_ctypes(ctypes.c_void_p(ctypes.addressof(one)))
        if answer:
            return answer + (record << 32)
    stamps[2 * count :] = divmod(time.perf_counter_ns(), 1_000_000_000)
    return 0


def _walk_with_ctypes(table: ctypes.c_void_p, flag: int = 0, deadline: int = 0) -> int:
    address, size = table.value or 0, TABLE_WORDS
    count = ctypes.c_int64.from_address(address).value
    words = (ctypes.c_int64 * (1 + size * count)).from_address(address)
    record = 0
    while record < count:
        if flag and ctypes.c_int64.from_address(flag).value:
            return CANCELLED
        if deadline and time.monotonic_ns() >= deadline:
            return LATE
        function, a, b, n, d = words[1 + size * record : 1 + size * (record + 1)]
        if not function:
            record = record + 1 if a and ctypes.c_bool.from_address(a).value else n
            continue
        status = _PROTOTYPE(function)(a, b, n, d)
        if status:
            return (record + 1) << 32 | (status & 0xFFFFFFFF)
        record += 1
    return 0


class CallTable:
    """Steps in order; runs of native calls become tables, Python steps run between them.

    steps: an array too, of native calls alone: a row of words for each.
    labels: what each step is, for messages. A native call without a function is a jump (see `dispatch_loop`).
    Raises: ExecutionError for jumps among steps that are not native; when run, one naming the step that failed, and
    CallTimeoutError or CallCancelledError where its limit ends it between two steps.
    """

    def __init__(self, steps: Sequence[Step] | np.ndarray, labels: Sequence[StepLabel] | None = None) -> None:
        numbers = range(len(steps))
        self._labels = tuple(labels) if labels is not None else tuple(StepLabel(f"step {i}") for i in numbers)
        if len(self._labels) != len(steps):
            raise ValueError(f"{len(self._labels)} labels for {len(steps)} steps")
        # Native calls in tables, and between these steps that Python runs.
        self._parts: list[ctypes.Array[ctypes.c_int64] | tuple[Run, ...]] = []
        # What follows does not refer to this object: in a cycle, all that a program holds would wait for the collector.
        # `fail(answer, first)` raises what the dispatch loop's answer says; `first` is the number of a table's first
        # step, 0 if it is left out.
        self.fail: Callable[..., NoReturn] = partial(_fail, self._labels)
        if isinstance(steps, np.ndarray) or not steps:
            segments = [self._native_segment(np.array(steps, np.int64), 0)]
        else:
            segments = self._make_segments(steps)
        self.is_native = all(isinstance(part, ctypes.Array) for part in self._parts)
        if not self.is_native and any(isinstance(step, NativeCall) and not step.function for step in steps):
            raise ExecutionError("steps that Python runs cannot be jumped over", expected="native steps")
        # The usual program is one table: then running is this one call.
        # `run(limit)`, or `run()` to run to the end.
        self.run: Callable[..., None] = segments[0] if len(segments) == 1 else partial(_run_segments, segments)

    def _make_segments(self, steps: Sequence[Step]) -> list[LimitedRun]:
        segments: list[LimitedRun] = []
        numbered = groupby(enumerate(steps), key=lambda item: isinstance(item[1], NativeCall))
        for is_native, group in numbered:
            members = list(group)
            if is_native:
                calls = [step for _, step in members if isinstance(step, NativeCall)]
                rows = np.array([[_to_signed(word) for word in call] for call in calls], np.int64)
                segments.append(self._native_segment(rows, members[0][0]))
            else:
                runs = tuple([step for _, step in members if not isinstance(step, NativeCall)])
                self._parts.append(runs)
                segments.append(partial(_run_python, runs, self._labels, members[0][0]))
        return segments

    def _native_segment(self, rows: np.ndarray, first: int) -> LimitedRun:
        words = np.empty(1 + rows.size, np.int64)
        words[0], words[1:] = len(rows), rows.ravel()
        table = (ctypes.c_int64 * len(words)).from_buffer(words.data)
        self._parts.append(table)
        # A pointer object made once: making one from an integer takes longer than the call itself.
        walk, pointer, fail = table_walker(), ctypes.c_void_p(ctypes.addressof(table)), self.fail

        # The default keeps the table for as long as the function is there.
        def run_native(limit: CallLimit | None = None, _table: object = table) -> None:
            answer = (
                walk(pointer) if limit is None else find_limited_table_walker()(pointer, limit.flag, limit.deadline)
            )
            if limit is not None and answer in (CANCELLED, LATE):
                limit.fail(answer)
            if answer:
                fail(answer, first)

        return run_native

    @property
    def address(self) -> int | None:
        """The address of the table when all steps are native: one call of the dispatch loop runs the program."""
        table = self._parts[0]
        return ctypes.addressof(table) if len(self._parts) == 1 and isinstance(table, ctypes.Array) else None

    def run_timed(self) -> list[float]:
        """Run, and return the seconds that each step took."""
        seconds: list[float] = []
        for part in self._parts:
            if isinstance(part, ctypes.Array):
                seconds += self._time_native(part, len(seconds))
                continue
            for step in part:
                start = time.perf_counter()
                _run_python((step,), self._labels, len(seconds))
                seconds.append(time.perf_counter() - start)
        return seconds

    def _time_native(self, table: ctypes.Array[ctypes.c_int64], first: int) -> list[float]:
        count = table[0]
        stamps = (ctypes.c_int64 * (2 * (count + 1)))()
        answer = table_timer()(ctypes.addressof(table), ctypes.addressof(stamps))
        if answer:
            self.fail(answer, first)
        return [
            (stamps[2 * n + 2] - stamps[2 * n]) + 1e-9 * (stamps[2 * n + 3] - stamps[2 * n + 1]) for n in range(count)
        ]


def _fail(labels: Sequence[StepLabel], answer: int, first: int = 0) -> NoReturn:
    status = ctypes.c_int32(answer & 0xFFFFFFFF).value
    said = None
    if status == _ERROR_RAISED:
        from kernelyard.runtime.abi.ffi_error import take_raised  # functions of tvm-ffi alone raise

        said = take_raised()
    raise step_error("a native step failed", labels[first + (answer >> 32) - 1], said or f"status {status}")


def _run_python(steps: Sequence[Run], labels: Sequence[StepLabel], first: int, limit: CallLimit | None = None) -> None:
    """Run neighbouring steps, of which `first` is the number of the first among all that have labels."""
    number = first
    try:
        for step in steps:
            if limit is not None:
                limit.check()
            step()
            number += 1
    except ExecutionError as error:
        error.where = error.where or describe_step(labels[number])
        if isinstance(error, NoImplementationError):
            error.symbol = labels[number].symbol
        raise
    except (Exception, SystemExit) as error:  # SystemExit in a kernel must not end the caller's process
        raise step_error("a step failed", labels[number], describe(error)) from error


def _run_segments(segments: Sequence[LimitedRun], limit: CallLimit | None = None) -> None:
    for segment in segments:
        segment(limit)


class TimedStep:
    """Runs a step of a program when it is called; `run_timed` does, and says where the time went.

    describe: what each of the table's steps is, where a step of the program consists of several. counters: what an
    engine counted inside, which is asked in its place.
    """

    def __init__(
        self,
        table: CallTable,
        label: StepLabel,
        describe: Callable[[], Sequence[Part]] | None = None,
        counters: Callable[[], Sequence[tuple[Part, float]]] | None = None,
    ) -> None:
        self._table = table
        self._label = label
        self._describe = describe
        self._counters = counters

    def __call__(self) -> None:
        self._table.run()

    def run_timed(self) -> tuple[float, Sequence[tuple[Part, float]]]:
        """Return the seconds, and those of each part where they are known."""
        seconds = self._run_timed()
        try:
            return sum(seconds), self._pair_parts(seconds)
        except Exception as error:  # a vendor's code
            raise step_error("a step cannot say what is in it", self._label, describe(error)) from error

    def _run_timed(self) -> Sequence[float]:
        return self._table.run_timed()

    def _pair_parts(self, seconds: Sequence[float]) -> tuple[tuple[Part, float], ...]:
        if self._counters is not None:
            return tuple((_part(part), float(spent)) for part, spent in self._counters())
        parts = self._describe() if self._describe is not None else ()
        return tuple(zip(map(_part, parts), seconds, strict=True)) if parts else ()


def _part(part: object) -> Part:
    if not isinstance(part, Part):
        raise TypeError(f"it returned {type(part).__name__}, not a Part")
    return part


def _to_signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
