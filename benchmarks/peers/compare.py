"""One model on several engines: all processes live at once, and take turns in short bursts, in rotating order."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peers.worker import Worker

REFERENCE = "onnxruntime"


@dataclass(frozen=True)
class Row:
    """An engine on a model. Milliseconds: the 10th percentile of all calls (steadier than the median where other work
    shares the cores), and the median.

    error: the largest difference to the reference's results, relative to the largest. failure: what went wrong.
    """

    engine: str
    version: str = ""
    p10_ms: float = 0.0
    median_ms: float = 0.0
    calls: int = 0
    cold_seconds: float = 0.0
    ready_seconds: float = 0.0
    peak_mib: float = 0.0
    error: float = 0.0
    failure: str = ""


@dataclass(frozen=True)
class Comparison:
    """A model on several engines with one number of threads. load: the machine's, when it ended."""

    model: str
    threads: int
    rows: tuple[Row, ...]
    load: float

    def row(self, engine: str) -> Row | None:
        """An engine that ran."""
        return next((row for row in self.rows if row.engine == engine and not row.failure), None)

    def ratio(self, engine: str, others: Sequence[str]) -> float | None:
        """How many times as fast an engine is as the fastest of the others; None where one side did not run."""
        own = self.row(engine)
        times = [row.p10_ms for row in map(self.row, others) if row is not None]
        return min(times) / own.p10_ms if own is not None and times else None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def compare(model: Path, pythons: Mapping[str, str], threads: int, rounds: int, burst_seconds: float) -> Comparison:
    """Measure a model. pythons: the interpreter of each engine."""
    with tempfile.TemporaryDirectory(prefix="kernelyard-bench-") as name:
        workers: list[Worker] = []
        failures: list[Row] = []
        for engine, python in pythons.items():
            try:
                workers.append(Worker.start(engine, python, model, threads, Path(name)))
            except RuntimeError as error:
                failures.append(Row(engine, failure=str(error)))
        _take_turns(workers, rounds, burst_seconds)
        reference = next((worker for worker in workers if worker.engine == REFERENCE), None)
        rows = [_row(worker, reference) for worker in workers]
        for worker in workers:
            worker.close()
    return Comparison(model.stem, threads, (*rows, *failures), os.getloadavg()[0])


def _take_turns(workers: Sequence[Worker], rounds: int, burst_seconds: float) -> None:
    counts: dict[str, int] = {}
    for worker in workers:
        quickest = min(worker.run(2))
        counts[worker.engine] = max(1, min(3000, int(burst_seconds / max(quickest, 1e-7))))
        worker.run(max(1, counts[worker.engine] // 2))
    for number in range(rounds):
        turn = number % max(len(workers), 1)
        for worker in (*workers[turn:], *workers[:turn]):
            time.sleep(0.02)  # worker threads of the engine before go to sleep
            seconds = worker.run(counts[worker.engine])
            worker.seconds += seconds[1:] or seconds  # the first wakes the engine's own


def _row(worker: Worker, reference: Worker | None) -> Row:
    tenth = sorted(worker.seconds)[len(worker.seconds) // 10]
    return Row(
        worker.engine,
        worker.version,
        1e3 * tenth,
        1e3 * statistics.median(worker.seconds),
        len(worker.seconds),
        worker.cold_seconds,
        worker.ready_seconds,
        worker.peak_mib,
        _difference(worker.results, reference.results) if reference is not None else float("nan"),
    )


def _difference(results: Path, reference: Path) -> float:
    found, wanted = (dict(np.load(path)) for path in (results, reference))
    if len(found) != len(wanted):
        return float("inf")
    worst = 0.0
    for a, b in zip(found.values(), wanted.values(), strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.size:
            a, b = a.astype(np.float64), b.astype(np.float64)
            worst = max(worst, float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)))
    return worst
