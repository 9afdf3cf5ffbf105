"""Engines take turns in one process: a turn's time is that between two events on the engine's stream."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from on_gpu.results import Row

MAX_CALLS = 2000  # of a turn


@dataclass
class Engine:
    """A way to compute something.

    run: asks for the work. calls: how many calls of what is measured that is. stream: where the work goes, PyTorch's
    own unless said otherwise. milliseconds: of one call, by turns. error: the largest difference to PyTorch's results,
    relative to the largest. note: what a reader of the time should know.
    """

    name: str
    run: Callable[[], Any]
    calls: int = 1
    stream: Any = None
    error: float = 0.0
    note: str = ""
    milliseconds: list[float] = field(default_factory=list)

    def row(self, model: str, work: float = 0.0, unit: str = "") -> Row:
        """The median of the turns. work: of a call, in so many thousand millions of `unit` per second."""
        took = statistics.median(self.milliseconds)
        return Row(model, self.name, took, self.error, work / took / 1e9 if work else 0.0, unit, self.note)


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest, relative to the largest wanted; computed where that lies."""
    a, b = found.to(wanted.device).double(), wanted.double()
    return float((a - b).abs().max() / (b.abs().max() + 1e-30)) if a.shape == b.shape else float("inf")


class Turns:
    """rounds: turns of each engine. burst_seconds: how long one takes."""

    def __init__(self, is_emulator: bool, rounds: int, burst_seconds: float) -> None:
        self.is_emulator, self.rounds, self.burst_seconds = is_emulator, rounds, burst_seconds

    def take(self, engines: Sequence[Engine]) -> None:
        """Measure engines, in rotating order."""
        counts: dict[str, int] = {}
        for engine in engines:
            self._milliseconds(engine, 2)
            quick = self._milliseconds(engine, 3) / 1e3
            counts[engine.name] = max(1, min(MAX_CALLS, int(self.burst_seconds / quick)))
        for number in range(self.rounds if engines else 0):
            turn = number % len(engines)
            for engine in (*engines[turn:], *engines[:turn]):
                took = self._milliseconds(engine, counts[engine.name])
                engine.milliseconds.append(took / engine.calls)

    def _milliseconds(self, engine: Engine, count: int) -> float:
        """Of one run, of so many."""
        if self.is_emulator:
            start = time.perf_counter()
            for _ in range(count):
                engine.run()
            return 1e3 * (time.perf_counter() - start) / count
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = engine.stream or torch.cuda.current_stream()
        torch.cuda.synchronize()
        first.record(stream)
        for _ in range(count):
            engine.run()
        last.record(stream)
        torch.cuda.synchronize()
        return first.elapsed_time(last) / count
