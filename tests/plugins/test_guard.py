"""Waiting for a plugin's answers: it ends, unless the plugin says that it gets on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kernelyard.errors import PluginTimeoutError
from kernelyard.plugins.sandbox import guard
from kernelyard.plugins.sandbox.guard import Countdown, progress, waits_for_processors, within_time


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", "2")


@pytest.mark.usefixtures("_quick")
def test_an_answer_that_gets_on_may_take_longer_than_one_that_does_not() -> None:
    def work(pause: float) -> int:
        for _ in range(6):
            time.sleep(pause)
            progress()
        return 7

    assert within_time("working", lambda: work(0.5)) == 7


@pytest.mark.usefixtures("_quick")
def test_what_gets_on_within_another_answer_is_progress_of_both() -> None:
    def inner() -> int:
        for _ in range(6):
            time.sleep(0.5)
            progress()
        return 8

    assert within_time("outer", lambda: within_time("inner", inner)) == 8


@pytest.mark.usefixtures("_quick")
def test_what_hangs_after_some_progress_is_ended() -> None:
    end = threading.Event()

    def work() -> None:
        progress()
        end.wait(60)

    with pytest.raises(PluginTimeoutError, match="did not finish within 2 s"):
        within_time("working", work)
    end.set()


def test_outside_of_an_answer_it_says_nothing() -> None:
    progress()


def test_time_in_which_the_process_is_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(guard.time, "monotonic", lambda: now)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        nonlocal now
        waited.append(seconds)
        now += 500 if len(waited) == 2 else seconds  # stopped, or the machine slept

    countdown = Countdown(3.5)
    while countdown.wait(wait):
        pass
    assert sum(waited) == pytest.approx(3.5)
    countdown.renew()
    assert countdown.wait(wait)


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = starved = 0.0
    monkeypatch.setattr(guard.time, "monotonic", lambda: now)

    def wait(seconds: float) -> None:
        nonlocal now, starved
        now += seconds
        starved += 0.75 * seconds

    countdown = Countdown(3, lambda: starved)
    while countdown.wait(wait):
        pass
    assert now == pytest.approx(12, abs=1)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts it")
def test_a_thread_that_others_leave_no_processor_waits_for_one(one_processor: None) -> None:
    started, ended = threading.Event(), threading.Event()

    def spin() -> None:
        started.set()
        while not ended.is_set():
            pass

    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    thread = threading.Thread(target=spin)
    thread.start()
    try:
        started.wait()
        while waits_for_processors(thread=thread.native_id) < 0.05:
            assert process.poll() is None
        assert waits_for_processors(process.pid) > 0
    finally:
        ended.set()
        thread.join()
        process.kill()
        process.wait()
    assert waits_for_processors(thread=2**30) == 0


@pytest.fixture
def one_processor() -> Iterator[None]:
    """Let this thread, and what it starts, run on one processor alone."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)
