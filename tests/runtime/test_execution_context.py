"""The pool of contexts: bounded, whoever waits gets one, nested calls do not wait for themselves."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kernelyard import errors
from kernelyard.runtime.execute import execution_context
from kernelyard.runtime.execute.execution_context import ContextPool, ExecutionContext, LockTurn, Turn, own_turn
from kernelyard.runtime.execute.virtual_machine import VirtualMachine


def give_back(pool: ContextPool, context: ExecutionContext) -> None:
    if not context.is_temporary:
        pool.give_back(context)
    if pool.waiters:
        pool.tell(context)


def test_the_context_released_last_is_acquired_first():
    pool = ContextPool(3)
    first, second = pool.acquire(), pool.acquire()
    assert first is not second
    give_back(pool, first)
    give_back(pool, second)
    assert pool.acquire() is second
    assert len(pool) == 2


def test_no_more_lanes_than_the_bound_are_made_and_never_is_one_shared():
    pool, in_use, mistakes = ContextPool(3), set(), []
    start = threading.Barrier(12)

    def work(_):
        start.wait(timeout=30)
        for number in range(200):
            context = pool.acquire()
            if id(context) in in_use or len(in_use) >= 3:
                mistakes.append(context)
            in_use.add(id(context))
            if number % 10 == 0:
                time.sleep(0)  # another thread's turn
            in_use.discard(id(context))
            give_back(pool, context)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12)))
    assert not mistakes
    assert len(pool) <= 3


def test_who_waits_is_handed_a_context():
    pool = ContextPool(1)
    context = pool.acquire()
    got = []
    waiting = threading.Thread(target=lambda: got.append(pool.acquire()))
    waiting.start()
    while not pool.waiters:
        time.sleep(0.001)
    give_back(pool, context)
    assert not pool._idle  # it went to the one who waits, past whoever comes now
    waiting.join(timeout=30)
    assert got == [context]


def test_a_thread_that_holds_a_context_does_not_wait_for_itself():
    pool = ContextPool(1)
    outer = pool.acquire()
    inner = pool.acquire()
    assert inner is not outer
    assert inner.is_temporary
    give_back(pool, inner)
    give_back(pool, outer)
    assert pool.acquire() is outer
    assert len(pool) == 1


def test_an_instrument_may_call_the_program(executable):
    machine = VirtualMachine(executable, contexts=1)
    x = np.ones((2, 4), np.float32)
    seen = []

    def instrument(step, name, before_run, ret_value, *args):
        if not seen:
            seen.append(None)
            seen.append(machine["main"](x)[0].numpy())

    machine.set_instrument(instrument)
    y, _ = machine["main"](x)
    np.testing.assert_array_equal(seen[1], y.numpy())


def wait_for(pool: ContextPool, count: int) -> tuple[list[threading.Thread], list[object]]:
    """Start so many threads that wait for a context and keep it; those, and what they got."""
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(pool.acquire())) for _ in range(count)]
    for each in threads:
        each.start()
    while len(pool.waiters) < count:
        time.sleep(0.001)
    return threads, got


def test_whoever_calls_again_goes_on_between_two_hand_overs(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(execution_context, "monotonic", lambda: clock[0])
    pool = ContextPool(1)
    context = pool.acquire()
    pool._hand_over_at = 1.0
    pool.waiters.append(Turn())  # one who waits, was told and has not looked yet
    for _ in range(3):
        give_back(pool, context)
        assert pool.acquire() is context
    pool.waiters.clear()
    (waiting,), got = wait_for(pool, 1)
    clock[0] = 1.0
    give_back(pool, context)
    assert not pool._idle  # nobody can overtake
    waiting.join(30)
    assert got == [context]


def test_what_was_handed_over_waits_for_the_first():
    pool = ContextPool(1)
    context = pool.acquire()
    first = Turn()  # one who waits, was told and has not looked yet
    pool.waiters.append(first)
    give_back(pool, context)
    got: list[object] = []
    later = threading.Thread(target=lambda: got.append(pool.acquire()))
    later.start()
    while len(pool.waiters) < 2:
        time.sleep(0.001)
    later.join(0.05)
    assert got == []
    pool.waiters.remove(first)  # Ctrl-C ended its waiting
    pool._wake_first()
    later.join(30)
    assert got == [context]


def test_a_thread_that_calls_again_wakes_nobody_between_two_hand_overs(monkeypatch):
    monkeypatch.setattr(execution_context, "monotonic", lambda: 0.0)
    pool = ContextPool(1)
    pool._hand_over_at = 1.0
    turn = Turn()
    pool.waiters.append(turn)
    told = []
    for _ in range(3):
        give_back(pool, pool.acquire())
        told.append(turn._is_told)
        turn._is_told = False
    assert told == [True, False, False]  # a thread that comes once tells at once


def test_all_who_wait_are_told_of_contexts_that_become_idle_at_once(monkeypatch):
    monkeypatch.setattr(execution_context, "monotonic", lambda: 0.0)
    pool = ContextPool(3)
    held = [pool.acquire() for _ in range(3)]
    pool._hand_over_at = 1.0
    threads, got = wait_for(pool, 3)
    for context in held:
        give_back(pool, context)
    for each in threads:
        each.join(30)
    assert sorted(map(id, got)) == sorted(map(id, held))


@pytest.mark.parametrize("kind", [Turn, LockTurn])
def test_a_turn_is_waited_for_until_it_is_told(kind):
    turn = kind()
    begun = time.monotonic()
    turn.wait(0.02)
    assert time.monotonic() - begun > 0.015
    turn.tell()
    turn.tell()
    turn.wait(3600)  # told before it waits
    waiting = threading.Thread(target=turn.wait, args=(3600,))
    waiting.start()
    turn.tell()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_turn_is_told_again_after_one_that_was_ended_before_it_wrote():
    turn = Turn()
    turn._is_told = True  # as Ctrl-C leaves it
    turn.wait(0.001)
    turn.tell()
    assert turn._poll.poll(0)


def test_each_thread_has_a_turn_of_its_own_and_closes_its_files():
    with ThreadPoolExecutor(1) as thread:
        turn = thread.submit(own_turn).result()
        assert thread.submit(own_turn).result() is turn
        assert own_turn() is not turn
        ends = turn._ends
    del turn
    gc.collect()
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_a_process_that_may_open_no_more_files_waits_all_the_same(monkeypatch):
    def no_pipe():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(execution_context.os, "pipe", no_pipe)
    monkeypatch.setattr(execution_context, "_TURNS", threading.local())
    assert isinstance(own_turn(), LockTurn)
    test_who_waits_is_handed_a_context()


def test_who_waits_looks_again_where_nobody_tells(monkeypatch):
    """Ctrl-C may end a call between giving its context back and telling."""
    monkeypatch.setattr(execution_context, "LOOK_AGAIN_SECONDS", 0.01)
    pool = ContextPool(1)
    context = pool.acquire()
    (waiting,), got = wait_for(pool, 1)
    pool.give_back(context)
    waiting.join(30)
    assert got == [context]


@pytest.mark.parametrize("contexts", [1, 2, 5])
def test_results_of_many_threads_are_those_of_one(executable, contexts):
    machine = VirtualMachine(executable, contexts=contexts)
    rng = np.random.default_rng(contexts)
    feeds = [rng.standard_normal((int(rng.integers(1, 6)), 4), dtype=np.float32) for _ in range(20)]
    serial = [machine["main"](x)[0].numpy().tobytes() for x in feeds]
    start = threading.Barrier(8)

    def work(_):
        start.wait(timeout=30)
        return [machine["main"](x)[0].numpy().tobytes() for x in feeds * 5]

    with ThreadPoolExecutor(8) as threads:
        assert all(results == serial * 5 for results in threads.map(work, range(8)))
    assert len(machine.contexts) <= contexts


def test_memory_that_has_grown_too_small_is_given_back_at_once(executable):
    """Nothing that is bound to it keeps it, nor does it wait for the garbage collector."""
    machine = VirtualMachine(executable, contexts=1)
    machine["main"](np.ones((1, 4), np.float32))
    context = machine.contexts.acquire()
    give_back(machine.contexts, context)
    small = weakref.ref(context._arena)
    gc.disable()
    try:
        machine["main"](np.ones((100_000, 4), np.float32))
        assert small() is None
    finally:
        gc.enable()
    assert machine["main"](np.ones((1, 4), np.float32))[0].shape == (1, 3)


def test_a_machine_needs_a_context(executable):
    with pytest.raises(errors.ExecutionError, match="at least one execution context"):
        VirtualMachine(executable, contexts=0)
