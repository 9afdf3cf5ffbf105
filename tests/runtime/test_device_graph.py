"""Steps of a device are captured when they run the second time with the same addresses, and replayed from then on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelyard.errors import ExecutionError, PerformanceWarning
from kernelyard.runtime.device.device import cuda
from kernelyard.runtime.execute.device_graph import MAX_GRAPHS, REPLAYS_OF_A_CAPTURE, CapturedProgram


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


def whole(driver: Recorder, *capturable: bool) -> Callable[..., list[str]]:
    names = [f"s{number}" for number in range(len(capturable))]
    steps = CapturedProgram(driver, [driver.step(name) for name in names], names, capturable)  # pyright: ignore[reportArgumentType]

    def run(*choices: tuple[int, ...]) -> list[str]:
        driver.ran.clear()
        moves: list[tuple[int, ...]] = []
        taken = steps.run(choices, moves.append)
        assert moves in ([], [taken])
        run.taken, run.has_moved = taken, bool(moves)
        return list(driver.ran)

    return run


def test_the_second_run_at_the_same_addresses_is_captured():
    run = whole(Recorder(), True, True)
    assert run((1,)) == ["s0", "s1"]
    assert run((1,)) == run((1,)) == ["replay of s0 s1"]
    assert run((2,)) == ["s0", "s1"]
    assert run((1,)) == ["replay of s0 s1"]
    assert run((2,)) == ["replay of s0 s1"]


def test_addresses_that_come_in_turn_are_captured():
    """As of caches that a decoder feeds back: each result lies where the one before the last did."""
    run = whole(Recorder(), True, True)
    ran = [run((number % 3,)) for number in range(8)]
    assert ran == [["s0", "s1"]] * 3 + [["replay of s0 s1"]] * 5


def test_steps_are_told_of_addresses_unless_all_are_replayed():
    for capturable, moves in (((True, True), [True, True, False]), ((True, True, False), [True, True, True])):
        run = whole(Recorder(), *capturable)
        assert [bool(run((1,))) and run.has_moved for _ in range(3)] == moves


def test_known_addresses_are_preferred_to_new_ones():
    run = whole(Recorder(), True, True)
    taken = [bool(run((number,), (-1,))) and run.taken for number in (0, 1, 2, 0, 0, 3)]
    assert taken == [(0,), (-1,), (-1,), (0,), (0,), (-1,)]


def test_captures_must_pay():
    run = whole(Recorder(), True, True)
    sets = [(number,) for number in range(2 * MAX_GRAPHS)]
    for addresses in sets:
        run(addresses)
    ran = [run(addresses)[0].startswith("replay") for addresses in sets + sets]
    assert sum(ran) == MAX_GRAPHS + MAX_GRAPHS  # the first are captured; they are replayed, the others run as they are
    for _ in range(REPLAYS_OF_A_CAPTURE):
        run(sets[0])
    assert run(sets[-1]) == ["replay of s0 s1"]


def test_steps_that_may_not_be_captured_run_between():
    run = whole(Recorder(), True, True, False, True, False, True, True, True)
    run(())
    assert run(()) == ["replay of s0 s1", "s2", "s3", "s4", "replay of s5 s6 s7"]


def test_only_so_many_captures_are_kept():
    run = whole(Recorder(), True, True)
    for address in range(MAX_GRAPHS):
        run((address,))
        assert run((address,)) == ["replay of s0 s1"]
    for _ in range(REPLAYS_OF_A_CAPTURE):
        run((1,))
    run((-1,))
    assert run((-1,)) == ["replay of s0 s1"]
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
