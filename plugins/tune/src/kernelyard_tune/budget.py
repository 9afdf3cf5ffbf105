"""Budget: the time of a measurement, which compiling candidates and running them in turns share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernelyard_tune.paired_test import LEAST_PAIRS
from kernelyard_tune.race import BURST_SECONDS, SIZING_CALLS

LEAST_RACE = 0.3  # the part of the budget that is kept for running in turns: more turns show smaller differences
LAST_RACERS = 2  # the default, and what is left to beat it: these take all turns, whatever that takes


@dataclass
class Budget:
    """Say what there is time for, in seconds of the wall.

    seconds: in all. compiles: what each compile and first call has taken. calls: about what a
    call of the model takes, at each set of sizes.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    compiles: list[float] = field(default_factory=list)
    calls: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.deadline = self.clock() + self.seconds

    @property
    def left(self) -> float:
        """The seconds until the deadline, at least 0."""
        return max(self.deadline - self.clock(), 0.0)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Note how long a block takes that compiles a candidate."""
        start = self.clock()
        yield
        self.compiles.append(self.clock() - start)

    def race_seconds(self, candidates: int) -> float:
        """Return what it takes at least to run so many candidates in turns."""
        each = candidates * (SIZING_CALLS + 1) + LAST_RACERS * (LEAST_PAIRS - 1)
        seconds = each * sum(max(call, BURST_SECONDS) for call in self.calls)
        return max(seconds, LEAST_RACE * self.seconds)

    def has_time_for(self, candidates: int, seconds: float = 0.0) -> bool:
        """Tell if that much else can be done before a race of so many candidates."""
        return seconds + self.race_seconds(candidates) <= self.left

    def may_compile(self, candidates: int) -> bool:
        """Tell if another candidate can be compiled before a race of so many, should it take as long as any so far."""
        return self.has_time_for(candidates, max(self.compiles, default=0.0))
