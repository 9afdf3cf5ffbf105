"""The thread pool of a process: parallel regions of generated kernels and of libraries share its workers.

It stands in for GNU OpenMP's runtime library behind the same functions, with three differences. A region never waits
for a worker that has not begun: the thread that started it does the work instead. Who waits spins for a moment, then
sleeps, at once where other processes want the cores. And all regions share as many workers as there are processors.

Source: the interface is that of GCC's libgomp manual, "The libgomp ABI"; futexes are those of futex(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from threading import Lock

from kernelyard.records import record
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.abi.threads import default_threads, processors
from kernelyard.runtime.jit.linking import compile_text

ENTRY_POINTS = (
    "GOMP_barrier",
    "GOMP_loop_end_nowait",
    "GOMP_loop_static_next",
    "GOMP_loop_static_start",
    "GOMP_parallel",
    "GOMP_parallel_end",
    "GOMP_parallel_start",
    "omp_get_max_threads",
    "omp_get_num_threads",
    "omp_get_thread_num",
    "omp_in_parallel",
    "omp_set_num_threads",
)
_BEGIN, _RESET, _PARALLEL = "kernelyard_begin_pool", "kernelyard_reset_pool", "kernelyard_parallel"
_FROM_C = (
    "clock_gettime",
    "getrusage",
    "pthread_create",
    "pthread_detach",
    "pthread_getspecific",
    "pthread_key_create",
    "pthread_setspecific",
    "sched_yield",
    "syscall",
)
# By machine: the instruction that tells a processor of a spinning loop, and the number of futex(2).
_MACHINES = {"x86_64": ("@llvm.x86.sse2.pause()", 202), "aarch64": ("@llvm.aarch64.hint(i32 1)", 98)}
# Flags of kernels' GOMP_parallel, which libgomp ignores: the function takes any number of members, and has one while
# others want the cores, or where all workers sleep, as it is shorter than waking one.
ALONE_IF_CONTENDED, ALONE_IF_ASLEEP = 1 << 8, 1 << 9
_CONSTANTS = {
    "ALONE_IF_CONTENDED": ALONE_IF_CONTENDED,
    "ALONE_IF_ASLEEP": ALONE_IF_ASLEEP,
    "TEAMS": 256,  # regions at the same time, at most; further ones wait for one to end
    "SPIN_NS": 250_000,  # longer than the time between two kernels, or from one call in a loop to the next
    "CONTENDED_SPIN_NS": 2_000,  # while others want the cores
    "GAP_NS": 20_000,  # eight pauses take less than a microsecond: who was away for longer may have lost the core
    "CONTENDED_NS": 1_000_000,  # after a preemption; twice as long where the last such time ended within RECENT_NS
    "MAX_CONTENDED_NS": 16_000_000,
    "RECENT_NS": 10_000_000,
    "NAP_NS": 1_000_000,  # of workers while others want the cores
    "NOTICE_NS": 200_000,  # between two looks at whether the system preempts threads at work: a system call
}


@record
class ThreadPool:
    """Addresses of the pool's entry points, by their names in libgomp's interface.

    for_kernels: for compiled functions whose members meet at `GOMP_barrier` or not at all; regions of all callers share
      as many workers as the process has processors, less one.
    for_libraries: for code that may wait for other members of its team by other means; a team of three and more has a
      worker for each of its members, as with libgomp.
    """

    for_kernels: Mapping[str, int]
    for_libraries: Mapping[str, int]


_lock = renewed_in_children(Lock())


def thread_pool() -> ThreadPool | None:
    """Return the process's pool; None where nothing can compile it, or the system is not Linux. It starts no thread.

    Example:
        >>> pool = thread_pool()
        >>> pool is None or sorted(pool.for_libraries) == sorted(ENTRY_POINTS)
        True
    """
    with _lock:  # two callers at once make one pool
        return _make()


@cache
def _make() -> ThreadPool | None:
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return None
    libc = ctypes.CDLL(None)
    imports = {name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0 for name in _FROM_C}
    code = compile_text(_text(), imports, (*ENTRY_POINTS, _BEGIN, _RESET, _PARALLEL))
    if code is None:
        return None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(code.owner))  # workers run the code until the process has ended
    begin = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(code.addresses[_BEGIN])
    if begin(processors() - 1, default_threads()):
        return None
    # A child process has none of its parent's workers.
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(code.addresses[_RESET]))
    entry_points = {name: code.addresses[name] for name in ENTRY_POINTS}
    return ThreadPool({**entry_points, "GOMP_parallel": code.addresses[_PARALLEL]}, entry_points)


def _text() -> str:
    pause, futex = _MACHINES[platform.machine()]
    with open(f"{os.path.splitext(__file__)[0]}.ll", encoding="utf-8") as file:
        text = file.read()
    values = {**_CONSTANTS, "PAUSE": pause, "PAUSE_DECLARED": pause.replace(" 1", ""), "FUTEX": futex}
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", str(value))
    return text
