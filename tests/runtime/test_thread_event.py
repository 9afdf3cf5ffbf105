"""Auto-reset events: waiting, setting, one for each thread, closed with it."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelyard.runtime.execute.thread_event import LockEvent, PipeEvent, thread_event


@pytest.mark.parametrize("kind", [PipeEvent, LockEvent])
def test_an_event_is_waited_for_until_it_is_set(kind):
    event = kind()
    begun = time.monotonic()
    event.wait(0.02)
    assert time.monotonic() - begun > 0.015
    event.set()
    event.set()
    event.wait(3600)  # set before the wait
    waiting = threading.Thread(target=event.wait, args=(3600,))
    waiting.start()
    event.set()
    waiting.join(30)
    assert not waiting.is_alive()


def test_an_event_can_be_set_after_ctrl_c_ended_a_set_before_its_write():
    event = PipeEvent()
    event._is_set = True  # as Ctrl-C leaves it
    event.wait(0.001)
    event.set()
    assert event._poll.poll(0)


def test_each_thread_has_its_own_event_and_closes_its_files():
    with ThreadPoolExecutor(1) as thread:
        event = thread.submit(thread_event).result()
        assert thread.submit(thread_event).result() is event
        assert thread_event() is not event
        ends = event._ends
    del event
    gc.collect()
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
