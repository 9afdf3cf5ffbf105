"""Steps of a device are captured when they run the second time with the same addresses, and replayed from then on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelyard.errors import ExecutionError, PerformanceWarning
from kernelyard.runtime.device.device import cuda
from kernelyard.runtime.execute.device_graph import MAX_GRAPHS, CapturedProgram


class Recorder:
    """Stands for a driver: what ran, and what was captured instead of run."""

    device = cuda(0)

    def __init__(self, answer: Exception | str = "replays") -> None:
        self.ran: list[str] = []
        self._answer = answer
        self._into: list[str] | None = None

    def step(self, name: str) -> Callable[[], None]:
        return lambda: (self.ran if self._into is None else self._into).append(name)

    def capture(self, run: Callable[[], None]) -> Callable[[], None] | None:
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer == "nothing":
            return None
        self._into = captured = []
        run()
        self._into = None
        return lambda: self.ran.append(f"replay of {' '.join(captured)}")


def whole(driver: Recorder, *capturable: bool) -> Callable[[tuple[int, ...]], list[str]]:
    names = [f"s{number}" for number in range(len(capturable))]
    steps = CapturedProgram(driver, [driver.step(name) for name in names], names, capturable)  # pyright: ignore[reportArgumentType]

    def run(addresses: tuple[int, ...]) -> list[str]:
        driver.ran.clear()
        steps.run(addresses)
        return list(driver.ran)

    return run


def test_the_second_run_at_the_same_addresses_is_captured():
    run = whole(Recorder(), True, True)
    assert run((1,)) == ["s0", "s1"]
    assert run((1,)) == run((1,)) == ["replay of s0 s1"]
    assert run((2,)) == ["s0", "s1"]
    assert run((1,)) == ["replay of s0 s1"]
    assert run((2,)) == ["s0", "s1"]  # not twice in a row: addresses that go to and fro are not worth it
    assert run((2,)) == ["replay of s0 s1"]


def test_steps_that_may_not_be_captured_run_between():
    run = whole(Recorder(), True, True, False, True, False, True, True, True)
    run(())
    assert run(()) == ["replay of s0 s1", "s2", "s3", "s4", "replay of s5 s6 s7"]


def test_only_so_many_captures_are_kept():
    run = whole(Recorder(), True, True)
    for address in range(MAX_GRAPHS + 1):
        run((address,))
        assert run((address,)) == ["replay of s0 s1"]
    assert run((1,)) == ["replay of s0 s1"]
    assert run((0,)) == ["s0", "s1"]


def test_a_failed_capture_is_told_once_and_the_steps_go_on():
    run = whole(Recorder(ExecutionError("no", found="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")), True, True)
    run(())
    with pytest.warns(PerformanceWarning, match="CAPTURE_UNSUPPORTED"):
        assert run(()) == ["s0", "s1"]
    assert run(()) == ["s0", "s1"]


def test_a_device_without_captures_runs_the_steps():
    run = whole(Recorder("nothing"), True, True)
    assert run(()) == run(()) == run(()) == ["s0", "s1"]
