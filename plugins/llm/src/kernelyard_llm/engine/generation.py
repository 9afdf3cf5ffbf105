"""Generation: one request of an engine, and its state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernelyard_llm.engine.pages import PageTable
from kernelyard_llm.sampling import Sampler, Sampling, Scored

Reason = Literal["stop", "length", "cancelled"]
Event = Scored | Reason | Exception
"""A new token with its score, and at the end why it ended, or what failed."""


@dataclass(eq=False)
class Generation:
    """Hold the state of one request. tell: called with every event, in the engine's thread; it must return at once.

    tokens: the prompt and what was chosen. ends: tokens that end it.
    """

    prompt: int
    tokens: list[int]
    most: int
    sampling: Sampling
    sampler: Sampler
    ends: Sequence[int]
    tell: Callable[[Event], None]
    table: PageTable
    begin: float = field(default_factory=time.perf_counter)
    reused: int = 0
    is_cancelled: bool = False

    @property
    def rows(self) -> int:
        """Return the rows of the cache that it may need: the last token is never computed."""
        return self.prompt + self.most - 1

    def cancel(self) -> None:
        """End it at the next step."""
        self.is_cancelled = True
