"""Budget: the minutes that a run has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Budget:
    """A task is expected to take as long as the longest one so far. minutes: None for as long as it takes."""

    def __init__(self, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if minutes is None else clock() + 60 * minutes
        self._longest = 0.0

    def fits(self) -> bool:
        """Return whether another task may begin."""
        return self._end is None or self._clock() + self._longest < self._end

    def run(self, task: Callable[[], Result]) -> Result:
        """Run a task, and learn from it how long one takes."""
        start = self._clock()
        try:
            return task()
        finally:
            self._longest = max(self._longest, self._clock() - start)
