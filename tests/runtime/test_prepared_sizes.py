"""Caches of an executable by sizes: bounded, visible in `cache_info`, and prepared beforehand by `warm`."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import errors
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.memory import HeapTrimmer
from kernelyard.runtime.execute import program_runner
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.lru import CacheInfo, sum_infos


def rows(count: int) -> np.ndarray:
    return np.arange(4 * count, dtype=np.float32).reshape(count, 4)


def counts(exe: ky.Executable, name: str) -> tuple[int, int, int]:
    """Hits, misses and entries of a cache."""
    return exe.cache_info()[name][:3]


# --- what is kept -----------------------------------------------------------------------------------------------------
def test_look_ups_of_sizes_are_counted(executable):
    assert counts(executable, "plans") == (0, 0, 0)
    for count in (1, 2, 3, 1):
        executable.run({"x": rows(count)})
    assert counts(executable, "plans") == (1, 3, 3)
    assert counts(executable, "bound programs") == (1, 3, 3)
    assert executable.cache_info()["bound programs"].nbytes >= 1 << 16  # the least arena


def test_the_heap_is_trimmed_when_plans_are_evicted(executable, monkeypatch):
    trims: list[int] = []
    trimmer = HeapTrimmer()
    trimmer.SHARE = 1e9  # of the time: whenever it is asked for
    monkeypatch.setattr(memory, "_malloc_trim", lambda: trims.append)
    monkeypatch.setattr(program_runner, "HEAP_TRIMMER", trimmer)
    executable.max_plans = 3
    for count, times in ((1, 0), (2, 0), (3, 0), (2, 0), (4, 1), (4, 1), (5, 2)):
        executable.run({"x": rows(count)})
        assert len(trims) == times, f"after size {count}"


def test_no_more_sizes_are_kept_than_the_option_says(executable, acme):
    acme.AcmeRuntime.binds = 0
    executable.max_plans = 3
    for count in (1, 2, 3, 1, 2, 3):
        executable.run({"x": rows(count)})
    assert acme.AcmeRuntime.binds == 2 * 3
    for count in range(1, 200):
        executable.run({"x": rows(count)})
    info = executable.cache_info()
    assert info["plans"].entries == info["plans"].capacity == 3
    assert info["bound programs"].entries == info["bound programs"].capacity == 3


def test_more_sizes_may_be_kept(executable, acme):
    executable.max_plans = 40
    acme.AcmeRuntime.binds = 0
    largest_first = range(40, 0, -1)
    for _ in range(3):
        for count in largest_first:
            executable.run({"x": rows(count)})
    assert acme.AcmeRuntime.binds == 2 * 40


def test_the_option_is_checked_and_is_pickled(executable):
    with pytest.raises(errors.ExecutionError, match="at least one plan"):
        executable.max_plans = 0
    executable.max_plans = 5
    assert executable.max_plans == 5
    b = FunctionBuilder()
    exe = ky.compile(IRModule({"main": b.function(b.op("exp", b.input("x", (symbol("n"),))))}))
    exe.max_plans = 7
    assert pickle.loads(pickle.dumps(exe)).max_plans == 7


def test_sums_of_counts():
    assert sum_infos([]) == CacheInfo(0, 0, 0, 0, 0)
    assert sum_infos([CacheInfo(1, 2, 3, 4, 5), CacheInfo(1, 1, 1, 1, 1)]) == (2, 3, 4, 5, 6)


# --- warm -------------------------------------------------------------------------------------------------------------
def test_a_first_run_finds_what_was_prepared(executable, weight, acme):
    acme.AcmeRuntime.binds = 0
    executable.warm({"x": (2, 4)}, {"x": (500, 4)}, {"x": (7, 4)})
    assert acme.AcmeRuntime.binds == 2 * 3
    for count in (2, 7, 500):
        got = executable.run({"x": rows(count)})
        np.testing.assert_allclose(next(iter(got.values())).numpy().shape[0], count)
    assert acme.AcmeRuntime.binds == 2 * 3
    assert counts(executable, "plans")[1] == 3


def test_shapes_may_be_keywords_and_fixed_ones_left_out():
    b = FunctionBuilder()
    x, w = b.input("x", (symbol("n"), 4)), b.input("w", (4,))
    exe = ky.compile(IRModule({"main": b.function(b.op("add", x, w))}))
    exe.warm(x=(3, 4))
    exe.warm(x=[np.int64(5), 4], w=(4,))
    exe.warm({"x": (6, 4)}, x=(7, 4))
    assert exe.cache_info()["plans"].entries == 4
    np.testing.assert_array_equal(exe(rows(3), np.ones(4, np.float32)).numpy(), rows(3) + 1)
    assert exe.cache_info()["plans"].misses == 4


def test_a_program_of_fixed_sizes_is_prepared_without_any():
    b = FunctionBuilder()
    exe = ky.compile(IRModule({"main": b.function(b.op("exp", b.input("x", (4,))))}))
    exe.warm()
    assert exe.cache_info()["bound programs"].misses == 1
    exe(np.ones(4, np.float32))
    assert exe.cache_info()["bound programs"].misses == 1


def test_a_number_of_threads_that_is_set_again_drops_nothing(executable, acme):
    binds: list[int] = []
    for threads in (1, 1, 2):
        executable.threads = threads
        executable(rows(3))
        binds.append(acme.AcmeRuntime.binds)
    assert binds[0] == binds[1] < binds[2]


def test_callers_at_the_same_time_find_it_prepared(executable, acme):
    machine = VirtualMachine(executable, contexts=3)
    acme.AcmeRuntime.binds = 0
    machine.function("main").warm([{"x": (2, 4)}], callers=3)
    assert acme.AcmeRuntime.binds == 2 * 3
    assert len(machine.contexts) == 3
    machine.function("main").warm([{"x": (2, 4)}], callers=8)  # as many as there may be
    assert acme.AcmeRuntime.binds == 2 * 3


def test_many_threads_may_prepare_and_run(executable):
    machine = VirtualMachine(executable, contexts=2)
    expected = {n: machine["main"](rows(n))[0].numpy().tobytes() for n in range(1, 9)}

    def work(n: int) -> bool:
        machine.function("main").warm([{"x": (n, 4)}], callers=2)
        return machine["main"](rows(n))[0].numpy().tobytes() == expected[n]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, [*range(1, 9)] * 5))


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        ({"y": (2, 4)}, errors.InputNameError, "'y' is no input"),
        ({}, errors.InputNameError, "'x' is missing"),
        ({"x": (2, 4, 1)}, errors.InputShapeError, "rank"),
        ({"x": (2, 5)}, errors.InputShapeError, "5"),
        ({"x": (2.5, 4)}, errors.InputShapeError, "whole numbers"),
        ({"x": 3}, errors.InputShapeError, "whole numbers"),
        ({"x": (-2, 4)}, errors.InputShapeError, "-2"),
    ],
)
def test_wrong_shapes_are_refused(executable, sizes, error, words):
    with pytest.raises(error, match=words):
        executable.warm(sizes)
    executable.run({"x": rows(2)})


def test_no_more_sizes_are_prepared_than_are_kept(executable):
    executable.max_plans = 2
    with pytest.raises(errors.ExecutionError, match=r"max_plans = 3"):
        executable.warm({"x": (1, 4)}, {"x": (2, 4)}, {"x": (3, 4)})
