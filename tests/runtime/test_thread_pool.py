"""The thread pool: every member of a region runs once, whoever runs it, and nobody waits for somebody who cannot come."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import CFUNCTYPE, c_bool, c_int, c_long, c_void_p
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard.runtime.jit import shared_pool
from kernelyard.runtime.jit import thread_pool as thread_pool_module
from kernelyard.runtime.jit.shared_pool import share_thread_pool
from kernelyard.runtime.jit.thread_pool import ENTRY_POINTS, ThreadPool, thread_pool

POOL = thread_pool()
pytestmark = pytest.mark.skipif(POOL is None, reason="the pool is for Linux, and needs llvmlite")
MEMBER = CFUNCTYPE(None, c_void_p)
TYPES: dict[str, Any] = {
    "GOMP_barrier": (None,),
    "GOMP_loop_end_nowait": (None,),
    "GOMP_loop_static_next": (c_bool, c_void_p, c_void_p),
    "GOMP_loop_static_start": (c_bool, c_long, c_long, c_long, c_long, c_void_p, c_void_p),
    "GOMP_parallel": (None, MEMBER, c_void_p, c_int, c_int),
    "GOMP_parallel_end": (None,),
    "GOMP_parallel_start": (None, MEMBER, c_void_p, c_int),
    "omp_get_max_threads": (c_int,),
    "omp_get_num_threads": (c_int,),
    "omp_get_thread_num": (c_int,),
    "omp_in_parallel": (c_int,),
    "omp_set_num_threads": (None, c_int),
}


class Calls:
    """The entry points as Python functions; they release the interpreter's lock."""

    def __init__(self, addresses: dict[str, int]) -> None:
        for name, types in TYPES.items():
            setattr(self, name, CFUNCTYPE(*types)(addresses[name]))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def region(self, work: Callable[[], object], members: int) -> None:
        """Run a function by so many members."""
        self.GOMP_parallel(MEMBER(lambda _: work() and None), None, members, 0)


@pytest.fixture(params=["kernels", "libraries"])
def calls(request: pytest.FixtureRequest) -> Calls:
    assert POOL is not None
    return Calls(dict(getattr(POOL, f"for_{request.param}")))


def test_it_has_the_types_of_all_entry_points() -> None:
    assert sorted(TYPES) == sorted(ENTRY_POINTS)


@pytest.mark.parametrize("members", [1, 2, 3, 5, 16])
def test_every_member_runs_once(calls: Calls, members: int) -> None:
    seen: list[tuple[int, int]] = []
    for _ in range(20):
        calls.region(lambda: seen.append((calls.omp_get_thread_num(), calls.omp_get_num_threads())), members)
    assert sorted(seen) == sorted([(number, members) for number in range(members)] * 20)


def test_the_old_interface(calls: Calls) -> None:
    seen: list[int] = []
    member = MEMBER(lambda _: seen.append(calls.omp_get_thread_num()))
    calls.GOMP_parallel_start(member, None, 3)
    member(None)
    calls.GOMP_parallel_end()
    assert sorted(seen) == [0, 1, 2]
    assert (calls.omp_get_thread_num(), calls.omp_get_num_threads(), calls.omp_in_parallel()) == (0, 1, 0)


def test_a_region_in_a_region_is_one_threads(calls: Calls) -> None:
    seen: list[tuple[int, int, int]] = []

    def inner() -> None:
        seen.append((calls.omp_get_thread_num(), calls.omp_get_num_threads(), calls.omp_in_parallel()))

    def outer() -> None:
        number = calls.omp_get_thread_num()
        calls.region(inner, 4)
        assert calls.omp_get_thread_num() == number

    calls.region(outer, 2)
    assert seen == [(0, 1, 0)] * 2


@pytest.mark.parametrize("members", [2, 3, 9])
def test_members_meet_though_there_are_fewer_processors(calls: Calls, members: int) -> None:
    counts = [0] * members
    uneven: list[object] = []

    def work() -> None:
        for step in range(1, 6):
            counts[calls.omp_get_thread_num()] = step
            calls.GOMP_barrier()
            uneven.extend([tuple(counts)] if len(set(counts)) > 1 else [])
            calls.GOMP_barrier()

    calls.region(work, members)
    assert (counts, uneven) == ([5] * members, [])


def test_members_of_several_callers_meet(calls: Calls) -> None:
    sums: list[int] = []

    def caller() -> None:
        for _ in range(5):
            total: list[int] = []

            def work() -> None:
                total.append(1)  # noqa: B023
                calls.GOMP_barrier()

            calls.region(work, 4)
            sums.append(len(total))

    threads = [threading.Thread(target=caller) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [4] * 30


def test_the_number_of_threads_is_each_threads_own(calls: Calls) -> None:
    found: list[int] = []

    def other() -> None:
        before = calls.omp_get_max_threads()
        calls.omp_set_num_threads(7)
        found.extend([before, calls.omp_get_max_threads()])

    default = calls.omp_get_max_threads()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [default, 7]
    assert calls.omp_get_max_threads() == default


def _shares(calls: Calls, members: int, loop: Sequence[int]) -> Iterator[range]:
    found: list[range] = []
    step = loop[2]

    def work() -> None:
        low, high = c_long(), c_long()
        places = ctypes.addressof(low), ctypes.addressof(high)
        more = calls.GOMP_loop_static_start(*loop, *places)
        while more:
            found.append(range(low.value, high.value, step))
            more = calls.GOMP_loop_static_next(*places)
        calls.GOMP_loop_end_nowait()

    calls.region(work, members)
    yield from found


@settings(max_examples=50, deadline=None)
@given(
    members=st.integers(1, 5),
    start=st.integers(-20, 20),
    length=st.integers(0, 40),
    step=st.sampled_from([1, 3, -1, -2]),
    chunk=st.integers(0, 5),
)
def test_a_loop_is_shared_among_the_members(members: int, start: int, length: int, step: int, chunk: int) -> None:
    assert POOL is not None
    end = start + length if step > 0 else start - length
    shares = list(_shares(Calls(dict(POOL.for_libraries)), members, (start, end, step, chunk)))
    assert sorted(i for share in shares for i in share) == sorted(range(start, end, step))
    if chunk:
        assert all(len(share) <= chunk for share in shares)
    else:
        assert max(map(len, shares), default=0) - min(map(len, shares), default=0) <= 1


def test_a_loop_outside_of_regions_is_whole(calls: Calls) -> None:
    low, high = c_long(), c_long()
    places = ctypes.addressof(low), ctypes.addressof(high)
    assert calls.GOMP_loop_static_start(2, 9, 1, 0, *places)
    assert (low.value, high.value) == (2, 9)
    assert not calls.GOMP_loop_static_next(*places)


# --- the process ------------------------------------------------------------------------------------------------------
FORKED = """
import ctypes, os
from kernelyard.runtime.jit.thread_pool import thread_pool
parallel = ctypes.CFUNCTYPE(None, ctypes.CFUNCTYPE(None, ctypes.c_void_p), ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
parallel = parallel(thread_pool().for_libraries["GOMP_parallel"])
def count():
    seen = []
    parallel(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(1)), None, 3, 0)
    return len(seen)
assert count() == 3
child = os.fork()
if child == 0:
    os._exit(0 if count() == 3 and count() == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
assert count() == 3
"""


def test_it_works_in_a_forked_child() -> None:
    subprocess.run([sys.executable, "-c", FORKED], timeout=60, check=True)


IDLE = """
import time
import resource
exec(open({path!r}).read())
time.sleep(0.2)
before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
time.sleep(1)
print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before)
"""


def test_workers_sleep_when_nothing_is_to_do(tmp_path: Any) -> None:
    (tmp_path / "forked.py").write_text(FORKED)
    command = [sys.executable, "-c", IDLE.format(path=str(tmp_path / "forked.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) < 0.05  # seconds of processor time; a spinning worker takes one in one


SIZED = """
import ctypes, os, threading
from kernelyard.runtime.abi import threads
os.sched_getaffinity = lambda pid: set(range({affinity}))
threads._CGROUPS, threads._OWN_CGROUPS = {groups!r}, {groups!r} + "/own"
from kernelyard.runtime.jit import thread_pool as pool
Member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
parallel = ctypes.CFUNCTYPE(None, Member, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
parallel = parallel(pool.thread_pool().for_kernels["GOMP_parallel"])
before, seen = len(os.listdir("/proc/self/task")), []
parallel(Member(lambda _: seen.append(threading.get_native_id())), None, 8, 0)
print(len(seen), len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize(
    ("affinity", "quota", "workers"),
    [
        pytest.param(1, "max 100000", 0, id="a set of one processor"),
        pytest.param(64, "150000 100000", 1, id="a quota of one and a half"),
        pytest.param(64, "300000 100000", 2, id="a quota of three"),
        pytest.param(4, "max 100000", 3, id="no quota"),
    ],
)
def test_the_pool_is_as_large_as_affinity_and_quota_say(
    tmp_path: Path, affinity: int, quota: str, workers: int
) -> None:
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    script = SIZED.format(affinity=affinity, groups=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["8", str(workers)]  # all members run; the caller and the workers share them


CONTENDED = """
import ctypes, os, resource, threading, time
from kernelyard.runtime.jit import thread_pool as pool
# The first preemption counts for ever, and who naps does not come back by himself in the time of this test.
pool._CONSTANTS.update(CONTENDED_NS=1 << 60, MAX_CONTENDED_NS=1 << 60, NOTICE_NS=0, NAP_NS=999_999_999)
Member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
parallel, barrier = (pool.thread_pool().for_kernels[name] for name in ("GOMP_parallel", "GOMP_barrier"))
parallel = ctypes.CFUNCTYPE(None, Member, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(parallel)
barrier = ctypes.CFUNCTYPE(None)(barrier)
def region(work, flags=0):
    seen = []
    parallel(Member(lambda _: (seen.append(threading.get_native_id()), work()) and None), None, 2, flags)
    return seen
def pause():
    time.sleep(0.002)
assert len(set(region(barrier))) == 2  # there is a worker
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
busy = threading.Thread(target=lambda: [sum(range(1 << 20)) for _ in range(40)])
busy.start()
while not resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw:
    sum(range(1 << 18))
busy.join()
region(pause)  # whose end shows it
late, alone = time.monotonic() + 30, 0
while alone < 50 and time.monotonic() < late:  # a worker takes one member, then it naps
    alone = alone + 1 if set(region(pause)) == {threading.get_native_id()} else 0
assert alone == 50
assert region(barrier, pool.ALONE_IF_CONTENDED) == [threading.get_native_id()]  # one member, which meets nobody
assert len(set(region(barrier))) == 2  # it is called where a team cannot go on without it
"""


def test_workers_leave_short_regions_alone_while_others_want_the_cores() -> None:
    subprocess.run([sys.executable, "-c", CONTENDED], timeout=60, check=True)


NEVER_CONTENDED = """
import ctypes
from kernelyard.runtime.jit import thread_pool as pool
pool._CONSTANTS.update(CONTENDED_NS=0, MAX_CONTENDED_NS=0)
Member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
parallel = ctypes.CFUNCTYPE(None, Member, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
parallel = parallel(pool.thread_pool().for_kernels["GOMP_parallel"])
seen = []
parallel(Member(lambda _: seen.append(1)), None, 3, pool.ALONE_IF_CONTENDED)
assert len(seen) == 3
"""


def test_regions_of_any_number_of_members_have_all_of_them_where_nobody_wants_the_cores() -> None:
    subprocess.run([sys.executable, "-c", NEVER_CONTENDED], timeout=60, check=True)


SHORT = """
import ctypes, threading, time
from kernelyard.runtime.jit import thread_pool as pool
# A worker that is awake stays so for the time of this test, and one that sleeps is not woken by a preemption.
pool._CONSTANTS.update(SPIN_NS={spin}, CONTENDED_NS=0, MAX_CONTENDED_NS=0)
Member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
parallel = ctypes.CFUNCTYPE(None, Member, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
parallel = parallel(pool.thread_pool().for_kernels["GOMP_parallel"])
def members(flags=pool.ALONE_IF_ASLEEP):
    seen = []
    parallel(Member(lambda _: seen.append(1)), None, 2, flags)
    time.sleep({pause})
    return len(seen)
"""
ASLEEP = "assert [members() for _ in range(9)] == [1, 1, 1, 2] * 2 + [1], 'each fourth wakes a worker'"
AWAKE = "assert [members(0), members(), members(), members()] == [2, 2, 2, 2], 'a worker that is awake takes part'"


@pytest.mark.parametrize(
    ("spin", "pause", "expected"), [(0, 0.05, ASLEEP), (1 << 60, 0, AWAKE)], ids=["asleep", "awake"]
)
def test_short_regions_have_one_member_where_all_workers_sleep(spin: int, pause: float, expected: str) -> None:
    command = [sys.executable, "-c", SHORT.format(spin=spin, pause=pause) + expected]
    subprocess.run(command, timeout=60, check=True)


# --- libraries --------------------------------------------------------------------------------------------------------
def test_a_library_without_openmp_is_left_alone() -> None:
    assert not share_thread_pool(ctypes.CDLL("libm.so.6"))


def test_a_library_that_needs_more_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    monkeypatch.setattr(shared_pool, "_openmp_imports", lambda library: [(8, "GOMP_parallel"), (16, "GOMP_task")])
    monkeypatch.setattr(shared_pool, "_write", written.append)
    assert not share_thread_pool(ctypes.CDLL(None))
    assert written == []


def test_the_imports_of_a_library_are_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    word = ctypes.c_uint64(1)
    monkeypatch.setattr(shared_pool, "thread_pool", lambda: ThreadPool({}, {"GOMP_parallel": 77}))
    imports = [(ctypes.addressof(word), "GOMP_parallel")]
    monkeypatch.setattr(shared_pool, "_openmp_imports", lambda library: imports)
    assert share_thread_pool(ctypes.CDLL(None))
    assert word.value == 77


def test_a_table_that_cannot_be_written_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    word = ctypes.c_uint64(1)
    monkeypatch.setattr(shared_pool, "thread_pool", lambda: ThreadPool({}, {"GOMP_parallel": 77, "GOMP_barrier": 78}))
    nowhere = 1 << 20  # below what the system gives to anybody
    imports = [(ctypes.addressof(word), "GOMP_parallel"), (nowhere, "GOMP_barrier")]
    monkeypatch.setattr(shared_pool, "_openmp_imports", lambda library: imports)
    assert not share_thread_pool(ctypes.CDLL(None))
    assert word.value == 1


def test_no_pool_on_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert thread_pool_module._make.__wrapped__() is None
