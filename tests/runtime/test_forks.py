"""Forks wait for threads that plan, and locks are free in child processes."""

from __future__ import annotations

import os
import threading
import time

import pytest

from kernelyard.cached_property import cached_property
from kernelyard.runtime.abi.forks import ForkDelay, no_fork_during


def test_a_fork_waits_until_other_threads_are_out() -> None:
    delay, entered, leave = ForkDelay(), threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> None:
        with delay:
            entered.set()
            leave.wait()
            order.append("out")

    def fork() -> None:
        delay.before_fork()
        order.append("fork")
        delay.after_fork()

    threads = [threading.Thread(target=work), threading.Thread(target=fork)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    time.sleep(0.02)
    assert order == []
    leave.set()
    for each in threads:
        each.join()
    assert order == ["out", "fork"]


def test_nobody_enters_while_a_process_forks() -> None:
    delay, order = ForkDelay(), []

    def work() -> None:
        with delay:
            order.append("in")

    delay.before_fork()
    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.02)
    assert order == []
    delay.after_fork()
    thread.join()
    assert order == ["in"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
def test_who_is_inside_may_fork() -> None:
    with no_fork_during:
        child = os.fork()
        if child == 0:
            with no_fork_during:
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_cached_property_is_computed_once_and_without_a_lock() -> None:
    """Objects that compute do not hold up one another."""
    first_began, second_done = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, name: str) -> None:
            self.name, self.computed = name, 0

        @cached_property
        def value(self) -> str:
            self.computed += 1
            if self.name == "first":
                first_began.set()
                assert second_done.wait(60)
            return self.name

    first, second = Slow("first"), Slow("second")
    thread = threading.Thread(target=lambda: first.value)
    thread.start()
    first_began.wait()
    assert second.value == "second"
    second_done.set()
    thread.join()
    assert (first.value, first.computed, second.value, second.computed) == ("first", 1, "second", 1)
    assert isinstance(Slow.value, cached_property)
