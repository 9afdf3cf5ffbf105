"""The collector is paused for a while, and runs again afterwards: also in a child process."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from kernelyard.collector import collector_paused


def test_a_pause_ends_where_it_began() -> None:
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the pause around it goes on"
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12, where other threads run
def test_a_child_that_is_forked_during_the_pause_of_another_thread_collects() -> None:
    paused, ended = threading.Event(), threading.Event()

    def pause() -> None:
        with collector_paused():
            paused.set()
            ended.wait()

    thread = threading.Thread(target=pause)
    thread.start()
    paused.wait()
    try:
        assert not gc.isenabled()
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ended.set()
        thread.join()
