"""What is asked of the driver to time work: two events on the stream of the work, and the time between them."""

from __future__ import annotations

import pytest

from kernelyard.errors import ExecutionError
from kernelyard_cublas import stopwatch
from kernelyard_cublas.stopwatch import CALLS, ROUNDS, WARM_UP, Stopwatch


class Function:
    """A function of the driver that answers as it is told, and keeps what it was called with."""

    def __init__(self, name, calls, answer):
        self.name, self.calls, self.answer = name, calls, answer

    def __call__(self, *arguments):
        self.calls.append((self.name, arguments))
        return self.answer(arguments)


class Driver:
    def __init__(self, milliseconds, failing=""):
        self.calls, times = [], iter(milliseconds)

        def create(arguments):
            arguments[0]._obj.value = 0x10 * len(self.calls)
            return 0

        def elapsed(arguments):
            arguments[0]._obj.value = next(times)
            return 0

        answers = {"cuEventCreate": create, "cuEventElapsedTime": elapsed}
        for name in ("cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"):
            answer = (lambda arguments: 700) if name == failing else answers.get(name, lambda arguments: 0)
            setattr(self, name, Function(name, self.calls, answer))


def test_the_least_of_some_rounds_counts(monkeypatch):
    driver = Driver([3.0, 1.5, 2.0])
    monkeypatch.setattr(stopwatch.ctypes, "CDLL", lambda name: driver)
    ran = []
    assert Stopwatch().seconds(ran.append, 77) == pytest.approx(1.5e-3 / CALLS)
    assert ran == [77] * (WARM_UP + ROUNDS * CALLS)
    names = [name for name, _ in driver.calls]
    assert (
        names
        == ["cuEventCreate"] * 2 + ["cuEventRecord", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"] * 3
    )
    assert {arguments[1] for name, arguments in driver.calls if name == "cuEventRecord"} == {77}
    first, last = [arguments[0].value for name, arguments in driver.calls if name == "cuEventRecord"][:2]
    assert first != last


def test_failures_of_the_driver_are_errors(monkeypatch):
    monkeypatch.setattr(stopwatch.ctypes, "CDLL", lambda name: Driver([], failing="cuEventRecord"))
    with pytest.raises(ExecutionError, match="CUDA driver failed") as caught:
        Stopwatch().seconds(lambda stream: None, 0)
    assert caught.value.where == "cuEventRecord"
