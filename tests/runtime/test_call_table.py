"""The call table: native steps and Python steps in order, failures named."""

from __future__ import annotations

import ctypes
import time

import pytest

from kernelyard import errors
from kernelyard.runtime.abi.module import NativeCall
from kernelyard.runtime.execute import call_table
from kernelyard.runtime.execute.call_limit import CallLimit, Cancellation
from kernelyard.runtime.execute.call_table import CallTable
from kernelyard.runtime.execute.step_errors import StepLabel

PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)


@pytest.fixture(params=["compiled", "ctypes"])
def runner(request, monkeypatch):
    """Both ways to walk a table."""
    if request.param == "ctypes":
        monkeypatch.setattr(call_table, "table_walker", lambda: call_table._walk_with_ctypes)
        monkeypatch.setattr(call_table, "find_limited_table_walker", lambda: call_table._walk_with_ctypes)
        monkeypatch.setattr(call_table, "table_timer", lambda: call_table._time_with_ctypes)
    else:
        assert call_table.table_walker() is not call_table._walk_with_ctypes
        assert call_table.table_timer() is not call_table._time_with_ctypes
    return request.param


@pytest.fixture
def native():
    """A native function that records its arguments; n is its status."""
    calls = []

    def function(a, b, n, d):
        calls.append((a, b, n, d))
        return n

    callback = PROTOTYPE(function)
    callback.calls = calls
    callback.address = ctypes.cast(callback, ctypes.c_void_p).value
    return callback


def test_arguments_arrive(runner, native):
    CallTable([NativeCall(native.address, 1, 2, 0, 4), NativeCall(native.address, (1 << 64) - 1, 0, 0, 1 << 63)]).run()
    assert native.calls == [(1, 2, 0, 4), ((1 << 64) - 1, None, 0, 1 << 63)]


@pytest.mark.parametrize("python", [None, 1, 2])
def test_a_cancelled_table_ends_between_two_steps(runner, native, python):
    cancellation = Cancellation()

    def cancel(*args):
        cancellation.cancel()
        native.calls.append("cancelled")
        return 0

    cancelling = PROTOTYPE(cancel)
    steps = [NativeCall(native.address)] * 2 + [NativeCall(ctypes.cast(cancelling, ctypes.c_void_p).value)]
    steps += [NativeCall(native.address), lambda: native.calls.append("python")]
    if python is not None:
        steps[python] = cancel
    with pytest.raises(errors.CallCancelledError):
        CallTable(steps).run(CallLimit(60, cancellation))
    assert len(native.calls) == (3 if python is None else python + 1)
    assert native.calls[-1] == "cancelled"


def test_a_late_table_ends_between_two_steps(runner, native):
    sleeping = PROTOTYPE(lambda *args: native.calls.append("slept") or time.sleep(0.06) or 0)
    steps = [NativeCall(ctypes.cast(sleeping, ctypes.c_void_p).value), NativeCall(native.address)]
    with pytest.raises(errors.CallTimeoutError, match=r"at most 0.05 s"):
        CallTable(steps).run(CallLimit(0.05))
    assert native.calls == ["slept"]
    CallTable(steps).run(CallLimit(60))
    assert len(native.calls) == 3


def test_a_jump_without_end_is_ended(runner):
    with pytest.raises(errors.CallTimeoutError):
        CallTable([NativeCall(0, n=0)]).run(CallLimit(0.01))


def test_python_steps_run_in_between(runner, native):
    order = native.calls
    steps = [NativeCall(native.address, 1), lambda: order.append("python"), NativeCall(native.address, 2)]
    table = CallTable(steps)
    table.run()
    table.run()
    assert [call if call == "python" else call[0] for call in order] == [1, "python", 2] * 2
    assert not table.is_native


@pytest.mark.parametrize(
    "run", [CallTable.run_timed, lambda table: table.run(), lambda table: table.run(CallLimit(60))]
)
@pytest.mark.parametrize("failing", [0, 1, 3, 4])
@pytest.mark.parametrize("status", [1, -7, -(1 << 31), (1 << 31) - 1])
def test_the_failing_step_is_named_and_the_rest_not_run(runner, native, failing, status, run):
    steps = [NativeCall(native.address, n=status if number == failing else 0) for number in range(5)]
    steps[2] = lambda: None
    with pytest.raises(errors.ExecutionError) as caught:
        run(CallTable(steps, [StepLabel(f"node {number}") for number in range(5)]))
    assert (caught.value.where, caught.value.found) == (f"node {failing}", f"status {status}")
    assert native.calls[-1][2] == status


def test_each_step_is_timed(runner, native):
    slow = PROTOTYPE(lambda a, b, n, d: time.sleep(0.02) or 0)
    steps = [
        NativeCall(native.address, 1),
        NativeCall(ctypes.cast(slow, ctypes.c_void_p).value, 2),
        lambda: time.sleep(0.01),
        NativeCall(native.address, 3),
    ]
    start = time.perf_counter()
    seconds = CallTable(steps).run_timed()
    whole = time.perf_counter() - start
    assert [call[0] for call in native.calls] == [1, 3]
    assert len(seconds) == 4
    assert min(seconds) >= 0
    assert seconds[1] >= 0.02
    assert seconds[2] >= 0.01
    assert sum(seconds) <= whole
    assert CallTable([]).run_timed() == []


def test_errors_of_python_steps_are_named():
    def fail():
        raise KeyError("gone")

    with pytest.raises(errors.ExecutionError) as caught:
        CallTable([fail], [StepLabel("node 'A'")]).run()
    place = f"test_call_table.py:{fail.__code__.co_firstlineno + 1}"
    assert (caught.value.where, caught.value.found) == ("node 'A'", f"KeyError at {place}: 'gone'")


def test_an_empty_table_runs():
    CallTable([]).run()


def test_labels_must_match():
    with pytest.raises(ValueError, match="1 labels for 0 steps"):
        CallTable([], [StepLabel("a")])


@pytest.mark.parametrize("truth", [False, True])
def test_a_jump_leaves_steps_out(runner, native, truth):
    flag = ctypes.c_bool(truth)
    first, second, last = (NativeCall(native.address, number) for number in (1, 2, 3))
    jump, onward = NativeCall(0, ctypes.addressof(flag), n=3), NativeCall(0, n=4)
    CallTable([jump, first, onward, second, last]).run()
    assert [call[0] for call in native.calls] == ([1, 3] if truth else [2, 3])


def test_a_jump_among_python_steps_is_refused():
    with pytest.raises(errors.ExecutionError, match="cannot be jumped over"):
        CallTable([NativeCall(0, n=2), lambda: None])
