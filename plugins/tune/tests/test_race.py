"""Programs that take turns, timed by a clock that they move themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from kernelyard_tune.paired_test import LEAST_PAIRS
from kernelyard_tune.race import FEWEST_TURNS, MOST_RESTS, MOST_TURNS, REST_SECONDS, Race


class Clock:
    """Seconds that pass when a program says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.random = np.random.default_rng(0)

    def program(self, seconds: float, noise: float = 0.0) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds * math.exp(noise * self.random.standard_normal())

        return call


def race(noise: float = 0.0, **seconds: float) -> Race:
    clock = Clock()
    found = Race({name: clock.program(each, noise) for name, each in seconds.items()}, lambda: clock.now)
    found.run(math.inf, lambda _: None)
    return found


def test_the_quickest_wins() -> None:
    assert race(default=0.3, quick=0.1, slow=0.5).winner().name == "quick"
    assert race(noise=0.03, default=0.3, quick=0.27, slow=0.5).winner().name == "quick"


def test_what_is_hardly_quicker_does_not_displace_what_is_simpler() -> None:
    assert race(default=0.101, quick=0.1).winner().name == "default"


def test_what_may_be_noise_does_not_either() -> None:
    assert race(noise=1.0, default=0.1, other=0.0999).winner().name == "default"


def test_what_is_slow_runs_no_longer_than_it_has_to() -> None:
    found = race(noise=0.01, default=0.1, same=0.1015, slow=0.5)
    turns = {racer.name: len(racer.seconds) for racer in found.racers}
    assert turns["slow"] == FEWEST_TURNS
    assert max(turns.values()) <= MOST_TURNS


def test_short_programs_are_called_more_often_in_a_turn() -> None:
    assert [racer.calls for racer in race(default=1.0, short=1e-3, shortest=1e-9).racers] == [1, 10, 50]


def test_a_race_that_is_over_before_it_starts_has_the_simplest_winner() -> None:
    clock = Clock()
    found = Race({"default": clock.program(2), "quick": clock.program(1)}, lambda: clock.now)
    assert found.winner().name == "default"


def test_an_interrupted_turn_counts_for_none() -> None:
    clock = Clock()
    calls = 0

    def interrupted() -> None:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise KeyboardInterrupt
        clock.now += 1.0

    found = Race({"default": clock.program(2.0), "quick": interrupted}, lambda: clock.now)
    with pytest.raises(KeyboardInterrupt):
        found.run(math.inf, lambda _: None)
    assert len({len(racer.seconds) for racer in found.racers}) == 1
    assert found.winner().name == "quick"


def test_without_time_for_six_turns_of_all_the_quickest_is_compared_with_the_simplest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("kernelyard_tune.race.time.monotonic", lambda: clock.now)
    seconds = {"default": 2.0, "slow": 5.0, "quick": 1.0, "slower": 6.0}
    found = Race({name: clock.program(each) for name, each in seconds.items()}, lambda: clock.now)
    found.run(36.0, lambda _: None)  # a call of each to size turns takes 14, a turn 14, five turns of the last two 15
    turns = {racer.name: len(racer.seconds) for racer in found.racers}
    assert turns == {"default": LEAST_PAIRS, "slow": 1, "quick": LEAST_PAIRS, "slower": 1}
    assert found.winner().name == "quick"


def test_a_single_program_needs_no_turns_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("kernelyard_tune.race.time.monotonic", lambda: clock.now)
    found = Race({"default": clock.program(2.0)}, lambda: clock.now)
    found.run(1.0, lambda _: None)
    assert len(found.racers[0].seconds) == 1


def test_no_program_always_follows_the_same_one() -> None:
    order: list[str] = []
    clock = Clock()

    def program(name: str) -> Callable[[], None]:
        def call() -> None:
            order.append(name)
            clock.now += 1.0

        return call

    found = Race({name: program(name) for name in "abc"}, lambda: clock.now)
    for number in range(FEWEST_TURNS):
        found.turn(number)
    before_a = {order[i - 1] for i, name in enumerate(order) if name == "a" and i}
    assert before_a >= {"b", "c"}
    assert all(order.count(name) == FEWEST_TURNS for name in "abc")


def test_where_time_is_up_before_the_first_turn_each_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("kernelyard_tune.race.time.monotonic", lambda: clock.now)
    seconds = {"default": 2.0, "slow": 5.0, "quick": 1.0}
    found = Race({name: clock.program(each) for name, each in seconds.items()}, lambda: clock.now)
    found.run(0.0, lambda _: None)
    assert {racer.name: len(racer.seconds) for racer in found.racers} == {"default": 6, "slow": 1, "quick": 6}


class Processor:
    """Processor time of a process in which a thread spins for a while after a call."""

    def __init__(self) -> None:
        self.used = 0.0
        self.left = 0.0  # that the thread will still spin

    def sleep(self, seconds: float) -> None:
        spun = min(self.left, seconds)
        self.used, self.left = self.used + spun, self.left - spun


def test_threads_that_spin_after_a_call_end_before_the_next_program_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor, seen = Processor(), list[float]()
    monkeypatch.setattr("kernelyard_tune.race.time.process_time", lambda: processor.used)
    monkeypatch.setattr("kernelyard_tune.race.time.sleep", processor.sleep)

    def call_of_a_library() -> None:
        processor.left = 0.05

    race = Race({"quiet": lambda: seen.append(processor.left), "library": call_of_a_library})
    for number in range(8):
        race.turn(number)
    assert seen == [0.0] * 8
    assert processor.used == pytest.approx(8 * 0.05)


def test_threads_that_never_sleep_are_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Processor()
    processor.left = math.inf
    monkeypatch.setattr("kernelyard_tune.race.time.process_time", lambda: processor.used)
    monkeypatch.setattr("kernelyard_tune.race.time.sleep", processor.sleep)
    Race({"only": lambda: None}).turn(0)
    assert processor.used == pytest.approx(MOST_RESTS * REST_SECONDS)
