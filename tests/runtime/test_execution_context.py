"""Execution contexts of concurrent and nested calls."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kernelyard import errors
from kernelyard.runtime.execute.virtual_machine import VirtualMachine


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
    machine.contexts.release(context)
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
