"""Run programs in turns in one process, until it is known which is the fastest."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelyard_tune.paired_test import LEAST_PAIRS, Comparison, compare

BURST_SECONDS = 0.01  # of one program in one turn: enough calls for its caches to be its own
MOST_CALLS = 50  # in a turn
SIZING_CALLS = 1  # of each program before the first turn
FEWEST_TURNS, MOST_TURNS = 12, 60
SAME = 1.02  # ratios up to this are no difference
CERTAIN, LIKELY = 0.005, 0.05  # p-values: to drop a program early, and to decide in the end
REST_SECONDS, MOST_RESTS = 0.002, 100  # between two programs, while threads of the first one still run
SPIN_SHARE = 0.2  # of a rest: with more processor time than that, some thread runs

Clock = Callable[[], float]


@dataclass
class Racer:
    """Hold a program and its times.

    calls: in each turn. seconds: of a call, for each turn the least of that turn, which other work disturbs least.
    turn_seconds: what the last turn took by `time.monotonic`.
    """

    name: str
    call: Callable[[], object]
    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    turn_seconds: float = 0.0


def wait_for_threads() -> None:
    """Wait until all other threads of this process sleep, at most `MOST_RESTS` times `REST_SECONDS`.

    Threads of some libraries spin for a while after a call, on the cores that the next program is measured on.
    """
    for _ in range(MOST_RESTS):
        before = time.process_time()
        time.sleep(REST_SECONDS)
        if time.process_time() - before < SPIN_SHARE * REST_SECONDS:
            return


class Race:
    """Run programs in turns.

    calls: by name, the simplest first; each was called before. clock: seconds of what is measured.
    """

    def __init__(self, calls: Mapping[str, Callable[[], object]], clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self.racers = [Racer(name, call) for name, call in calls.items()]
        self.running = list(self.racers)
        self.measurements = 0

    def size_turns(self) -> None:
        """Run each program, to see how many calls fit in a turn."""
        for racer in self.racers:
            seconds = max(self._time(racer), 1e-7)
            racer.calls = int(min(max(BURST_SECONDS / seconds, 1), MOST_CALLS))

    def turn(self, number: int) -> None:
        """Give each program that still runs its turn, in another order each time."""
        order = random.Random(number).sample(self.running, len(self.running))
        times = [(racer, self._least(racer)) for racer in order]
        for racer, seconds in times:  # together, so that an interrupted turn counts for none
            racer.seconds.append(seconds)

    def run(self, deadline: float, step: Callable[[str], None]) -> None:
        """Take turns until it is known which is the fastest, or until the deadline by `time.monotonic`; but as many as
        can show a difference. Where there is no time for so many of all, the slowest so far take no more of them.

        step: called with a line of progress.
        """
        self.size_turns()
        for number in range(MOST_TURNS):
            least = LEAST_PAIRS if len(self.running) > 1 else 1
            if number >= least and time.monotonic() > deadline:
                return
            if number:
                self._fit(LEAST_PAIRS - number, deadline)
            step(f"turn {number + 1}, {len(self.running)} candidates")
            self.turn(number)
            if number + 1 >= FEWEST_TURNS:
                self._drop()
                if self._is_decided():
                    return

    def compare_racers(self, a: Racer, b: Racer) -> Comparison:
        """Compare two programs over the turns that both took."""
        count = min(len(a.seconds), len(b.seconds))
        return compare(np.array(a.seconds[:count]), np.array(b.seconds[:count]))

    def fastest(self, among: Sequence[Racer]) -> Racer:
        """Return the program with the least median."""
        return min(among, key=lambda racer: float(np.median(racer.seconds)))

    def winner(self) -> Racer:
        """Return the first, and so simplest, of `winners`."""
        return self.winners()[0]

    def winners(self) -> list[Racer]:
        """Return all programs that are not significantly slower than the fastest, the simplest first."""
        ran = [racer for racer in self.running if racer.seconds]
        if not ran:
            return self.racers[:1]
        best = self.fastest(ran)
        return [racer for racer in ran if racer is best or self._is_same(best, racer, LIKELY)]

    def _fit(self, turns: int, deadline: float) -> None:
        """Drop the slowest while so many turns take longer than there is time; the first and the fastest stay."""
        left = deadline - time.monotonic()
        while len(self.running) > 2 and turns * sum(each.turn_seconds for each in self.running) > left:
            self.running.remove(max(self.running[1:], key=lambda each: float(np.median(each.seconds))))

    def _drop(self) -> None:
        best = self.fastest(self.running)
        self.running = [each for each in self.running if each is best or self._is_same(best, each, CERTAIN)]

    def _is_same(self, best: Racer, racer: Racer, level: float) -> bool:
        found = self.compare_racers(best, racer)
        return found.ratio <= SAME or found.p > level

    def _is_decided(self) -> bool:
        """Tell if more turns would change nothing: no difference is left open that would matter."""
        best = self.fastest(self.running)
        return all(self.compare_racers(best, each).ratio <= SAME for each in self.running if each is not best)

    def _least(self, racer: Racer) -> float:
        start = time.monotonic()
        seconds = max(min(self._time(racer) for _ in range(racer.calls)), 1e-9)
        wait_for_threads()
        racer.turn_seconds = time.monotonic() - start
        return seconds

    def _time(self, racer: Racer) -> float:
        self.measurements += 1
        start = self._clock()
        racer.call()
        return self._clock() - start
