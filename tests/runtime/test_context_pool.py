"""The pool of contexts: bounded, fair to waiters, without deadlock in nested calls."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from kernelyard.runtime.execute import context_pool, thread_event
from kernelyard.runtime.execute.context_pool import ContextPool
from kernelyard.runtime.execute.execution_context import ExecutionContext


def release(pool: ContextPool, context: ExecutionContext) -> None:
    if not context.is_temporary:
        pool.release(context)
    if pool.waiters:
        pool.notify(context)


def test_the_context_released_last_is_acquired_first():
    pool = ContextPool(3)
    first, second = pool.acquire(), pool.acquire()
    assert first is not second
    release(pool, first)
    release(pool, second)
    assert pool.acquire() is second
    assert len(pool) == 2


def test_contexts_are_bounded_and_never_shared():
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
                time.sleep(0)  # let another thread run
            in_use.discard(id(context))
            release(pool, context)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(work, range(12)))
    assert not mistakes
    assert len(pool) <= 3


def test_a_context_is_handed_off_to_the_waiter():
    pool = ContextPool(1)
    context = pool.acquire()
    got = []
    waiting = threading.Thread(target=lambda: got.append(pool.acquire()))
    waiting.start()
    while not pool.waiters:
        time.sleep(0.001)
    release(pool, context)
    assert not pool._idle  # it is reserved for the waiter
    waiting.join(timeout=30)
    assert got == [context]


def test_a_thread_that_holds_a_context_does_not_wait_for_itself():
    pool = ContextPool(1)
    outer = pool.acquire()
    inner = pool.acquire()
    assert inner is not outer
    assert inner.is_temporary
    release(pool, inner)
    release(pool, outer)
    assert pool.acquire() is outer
    assert len(pool) == 1


def wait_for(pool: ContextPool, count: int) -> tuple[list[threading.Thread], list[object]]:
    """Start threads that wait for a context and keep it; return them and the list of acquired contexts."""
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(pool.acquire())) for _ in range(count)]
    for each in threads:
        each.start()
    while len(pool.waiters) < count:
        time.sleep(0.001)
    return threads, got


def test_a_thread_that_calls_repeatedly_keeps_its_context_between_two_hand_offs(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(context_pool, "monotonic", lambda: clock[0])
    pool = ContextPool(1)
    context = pool.acquire()
    pool._next_handoff = 1.0
    pool.waiters.append(thread_event.PipeEvent())  # a waiter that was woken and has not run yet
    for _ in range(3):
        release(pool, context)
        assert pool.acquire() is context
    pool.waiters.clear()
    (waiting,), got = wait_for(pool, 1)
    clock[0] = 1.0
    release(pool, context)
    assert not pool._idle  # nobody can take it first
    waiting.join(30)
    assert got == [context]


def test_a_context_that_is_handed_off_is_reserved_for_the_first_waiter():
    pool = ContextPool(1)
    context = pool.acquire()
    first = thread_event.PipeEvent()  # a waiter that was woken and has not run yet
    pool.waiters.append(first)
    release(pool, context)
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


def test_a_thread_that_calls_repeatedly_wakes_nobody_between_two_hand_offs(monkeypatch):
    monkeypatch.setattr(context_pool, "monotonic", lambda: 0.0)
    pool = ContextPool(1)
    pool._next_handoff = 1.0
    event = thread_event.PipeEvent()
    pool.waiters.append(event)
    woken = []
    for _ in range(4):
        release(pool, pool.acquire())
        woken.append(event._is_set)
        event._is_set = False
        if len(woken) == 2:
            pool._sentinel = event  # it has seen that it is the first, and wakes up when the next hand-off is due
    assert woken == [True, True, False, False]  # the first release is by a new owner


def test_a_waiter_that_becomes_the_first_is_not_woken_for_it():
    pool = ContextPool(1)
    context = pool.acquire()
    second = thread_event.PipeEvent()
    (waiting,), got = wait_for(pool, 1)
    pool.waiters.append(second)
    release(pool, context)  # handed off to the first
    waiting.join(30)
    assert got == [context]
    assert list(pool.waiters) == [second]
    assert not second._is_set


def test_all_waiters_are_woken_by_contexts_that_become_idle_at_once(monkeypatch):
    monkeypatch.setattr(context_pool, "monotonic", lambda: 0.0)
    pool = ContextPool(3)
    held = [pool.acquire() for _ in range(3)]
    pool._next_handoff = 1.0
    threads, got = wait_for(pool, 3)
    for context in held:
        release(pool, context)
    for each in threads:
        each.join(30)
    assert sorted(map(id, got)) == sorted(map(id, held))


def test_a_process_that_may_open_no_more_files_waits_on_a_lock(monkeypatch):
    def no_pipe():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(thread_event.os, "pipe", no_pipe)
    monkeypatch.setattr(thread_event, "_THREAD", threading.local())
    assert isinstance(thread_event.thread_event(), thread_event.LockEvent)
    test_a_context_is_handed_off_to_the_waiter()


def test_a_waiter_checks_again_if_nobody_notifies_it(monkeypatch):
    """Ctrl-C may end a call between releasing its context and notifying."""
    monkeypatch.setattr(context_pool, "RECHECK_SECONDS", 0.01)
    pool = ContextPool(1)
    context = pool.acquire()
    (waiting,), got = wait_for(pool, 1)
    pool.release(context)
    waiting.join(30)
    assert got == [context]
