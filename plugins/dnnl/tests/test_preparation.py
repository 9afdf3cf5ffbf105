"""Code is generated and constants are packed by several threads; what failed is neither hidden nor kept."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kernelyard.errors import ExecutionError
from kernelyard_dnnl import packing, preparation
from kernelyard_dnnl.preparation import Helpers, Preparation, Task
from kernelyard_dnnl.runtime import DnnlRuntime


@pytest.mark.parametrize("processors", [1, 2, 5])
def test_all_work_is_done_once_when_it_is_finished(monkeypatch, processors):
    monkeypatch.setattr(preparation, "processors", lambda: processors)
    monkeypatch.setattr(preparation, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(preparation, "_HELPERS", helpers := Helpers())
    done: list[tuple[int, int]] = []
    work = Preparation()
    for _ in range(2):  # and it can be begun anew
        done.clear()
        for number in range(40):
            work.begin(lambda number=number: done.append((number, threading.get_ident())))
        work.finish()
        assert sorted(number for number, _ in done) == list(range(40))
        assert len({thread for _, thread in done}) <= processors
    while helpers.count:  # they end by themselves
        time.sleep(0.01)


def test_threads_are_the_same_for_one_preparation_after_the_other(monkeypatch):
    monkeypatch.setattr(preparation, "processors", lambda: 2)
    monkeypatch.setattr(preparation, "_HELPERS", Helpers())
    helping: set[threading.Thread] = set()

    def work():
        helping.add(threading.current_thread())
        time.sleep(1e-3)

    for _ in range(20):
        preparing = Preparation()
        for _ in range(4):
            preparing.begin(work)
        preparing.finish()
    assert len(helping) <= 2, "this one and one more"
    assert all(thread.is_alive() for thread in helping)


def test_who_calls_a_task_that_another_thread_does_waits_for_it():
    began, order = threading.Event(), []

    def work():
        began.set()
        time.sleep(0.05)
        order.append("done")

    task = Task(work)
    thread = threading.Thread(target=task)
    thread.start()
    began.wait()
    task()
    order.append("waited")
    thread.join()
    assert order == ["done", "waited"]


@pytest.mark.parametrize("processors", [1, 3])
def test_the_first_failure_is_raised_when_all_is_done(monkeypatch, processors):
    monkeypatch.setattr(preparation, "processors", lambda: processors)
    done: list[int] = []
    work = Preparation()
    for number in range(9):
        work.begin(lambda number=number: done.append(1 // (number % 3)))
    with pytest.raises(ZeroDivisionError):
        work.finish()
    assert len(done) == 6
    work.finish()


def convolution(builder, data, weight):
    return builder.kernel(
        "conv", (1, 24, 9, 9), {"data": data, "weight": weight}, rank=2, strides=(1, 1), padding_begin=(1, 1),
        padding_end=(1, 1), dilation=(1, 1), groups=1, post_ops=[], winograd=False,
    )  # fmt: skip


def test_the_code_of_a_plan_is_there_before_it_is_bound(builder, rng):
    weight = rng.standard_normal((24, 16, 3, 3), dtype=np.float32)
    y = convolution(builder, builder.input((1, 16, 9, 9)), builder.constant(weight))
    runtime = DnnlRuntime([builder.graph(y)], builder.constants)
    plan = runtime.plan("dnnl_0", {}, 1)
    assert plan.operations
    assert all(operation.code.is_generated for operation in plan.operations)


def test_constants_that_could_not_be_packed_are_packed_anew(builder, rng, monkeypatch):
    weight, x = (
        rng.standard_normal((24, 16, 3, 3), dtype=np.float32),
        rng.standard_normal((1, 16, 9, 9), dtype=np.float32),
    )
    y = convolution(builder, builder.input(x.shape), builder.constant(weight))
    runtime = DnnlRuntime([builder.graph(y)], builder.constants)
    result, good = np.empty((1, 24, 9, 9), np.float32), packing.run_primitive

    def bad(*_):
        raise ExecutionError("out of memory")

    monkeypatch.setattr(packing, "run_primitive", bad)
    with pytest.raises(ExecutionError, match="out of memory"):
        runtime.get_function("dnnl_0")(x, result)
    monkeypatch.setattr(packing, "run_primitive", good)
    runtime.get_function("dnnl_0")(x, result)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    np.testing.assert_allclose(result, np.einsum("nchwij,ocij->nohw", windows, weight), rtol=1e-4, atol=1e-4)
