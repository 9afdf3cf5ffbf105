"""One model on several engines: all processes live at once, and take turns in short bursts, in rotating order."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from peers.start import OURS, REFERENCE, Start, Starts, measure_starts
from peers.worker import PATIENCE_SECONDS, Worker

# An engine whose calls take longer than so many seconds has so many turns.
SLOW_SECONDS, SLOW_ROUNDS = 2.0, 3


@dataclass(frozen=True)
class Row:
    """An engine on a model. Milliseconds: the 10th percentile of all calls (steadier than the median where other work
    shares the cores), and the median.

    ours_p10_ms: that of our engine in the same run. processor_ms, ours_processor_ms: the least time that a call took of
    all processors together, which other work on the machine lengthens far less. error: the largest difference to the
    reference's results, relative to the largest. failure: what went wrong.
    """

    engine: str
    version: str = ""
    p10_ms: float = math.nan
    median_ms: float = math.nan
    calls: int = 0
    cold_seconds: float = math.nan
    ready_seconds: float = math.nan
    peak_mib: float = math.nan
    error: float = math.nan
    ours_p10_ms: float = math.nan
    processor_ms: float = math.nan
    ours_processor_ms: float = math.nan
    failure: str = ""

    @property
    def ratio(self) -> float:
        """How many times as fast our engine is; NaN where it did not run."""
        return self.p10_ms / self.ours_p10_ms

    @property
    def processor_ratio(self) -> float:
        """The same of the time of processors."""
        return self.processor_ms / self.ours_processor_ms


@dataclass(frozen=True)
class Comparison:
    """A model on several engines with one number of threads. load: the machine's, when it ended."""

    model: str
    threads: int
    rows: tuple[Row, ...]
    load: float
    starts: Starts | None = None

    def row(self, engine: str) -> Row | None:
        """An engine that ran."""
        return next((row for row in self.rows if row.engine == engine and not row.failure), None)

    def ratio(self, others: Sequence[str]) -> float | None:
        """How many times as fast our engine is as the fastest of the others, each in its own run; None where one side
        did not run."""
        ratios = [row.ratio for row in map(self.row, others) if row is not None and not math.isnan(row.ratio)]
        return min(ratios, default=None)

    def processor_ratio(self, others: Sequence[str]) -> float | None:
        """The same of the least times of processors, for one thread on a machine with other work."""
        rows = [row for row in map(self.row, others) if row is not None]
        return min((row.processor_ratio for row in rows if not math.isnan(row.processor_ratio)), default=None)

    def updated(self, later: Comparison) -> Comparison:
        """With the rows of a later run in the place of its own; those of other engines stay. So does our own where the
        later run is without the reference: it then came to know another engine's ratio."""
        known = {row.engine: row for row in self.rows}
        kept = {OURS} & known.keys() if all(row.engine != REFERENCE for row in later.rows) else set()
        rows = {row.engine: row for row in later.rows if row.engine not in kept}
        return replace(later, rows=tuple((known | rows).values()), starts=later.starts or self.starts)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return _without_nan(asdict(self))

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Comparison:
        """Return the comparison that `to_json` wrote."""
        starts = facts["starts"]
        return cls(
            facts["model"],
            facts["threads"],
            tuple(Row(**row) for row in facts["rows"]),
            facts["load"],
            Starts(**{kind: Start(**each) for kind, each in starts.items()}) if starts else None,
        )


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: what was not measured is left out."""
    if isinstance(value, dict):
        kept = {name: _without_nan(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if not (isinstance(item, float) and math.isnan(item))}
    return list(map(_without_nan, value)) if isinstance(value, (list, tuple)) else value


def compare(model: Path, pythons: Mapping[str, str], threads: int, how: How) -> Comparison:
    """Measure a model. pythons: the interpreter of each engine."""
    with tempfile.TemporaryDirectory(prefix="kernelyard-bench-") as name:
        folder = Path(name)
        starts = None
        if how.starts and {OURS, REFERENCE} <= pythons.keys():
            starts = measure_starts(model, pythons, threads, how.starts, folder, how.patience)
        workers: list[Worker] = []
        failures: list[Row] = []
        for engine, python in pythons.items():
            try:
                workers.append(Worker.start(engine, python, model, threads, folder, how.patience))
            except RuntimeError as error:
                failures.append(Row(engine, failure=str(error)))
        failures += take_turns(workers, how)
        rows = _rows(workers)
        for worker in workers:
            worker.close()
    return Comparison(model.stem, threads, (*rows, *failures), os.getloadavg()[0], starts)


@dataclass(frozen=True)
class How:
    """rounds: turns of each engine, of so many seconds. starts: processes that are started to see what that costs.
    patience: seconds that an answer may take."""

    rounds: int = 10
    burst_seconds: float = 0.15
    starts: int = 3
    patience: float = PATIENCE_SECONDS


def take_turns(workers: list[Worker], how: How) -> list[Row]:
    """Run them; those that fail are taken out, and given as rows."""
    failures: list[Row] = []

    def run(worker: Worker, count: int) -> list[float]:
        try:
            seconds = worker.run(count)
            worker.settle()
            return seconds
        except RuntimeError as error:
            failures.append(Row(worker.engine, worker.version, failure=str(error)))
            workers.remove(worker)
            worker.close()
            return []

    counts: dict[str, int] = {}
    for worker in tuple(workers):
        fastest = min(run(worker, 2), default=math.inf)
        counts[worker.engine] = max(1, min(3000, int(how.burst_seconds / max(fastest, 1e-7))))
        if worker in workers and fastest < how.burst_seconds:
            run(worker, max(1, counts[worker.engine] // 2))
    for number in range(how.rounds):
        turn = number % max(len(workers), 1)
        for worker in (*workers[turn:], *workers[:turn]):
            if number >= SLOW_ROUNDS and min(worker.seconds) > SLOW_SECONDS:
                continue
            seconds = run(worker, counts[worker.engine])
            worker.seconds += seconds[1:] or seconds  # the first wakes the engine's own
    return failures


def _rows(workers: Sequence[Worker]) -> list[Row]:
    results = {worker.engine: worker.results for worker in workers}
    least = {worker.engine: 1e3 * min(worker.processor_seconds) for worker in workers}
    tenths = {worker.engine: 1e3 * sorted(worker.seconds)[len(worker.seconds) // 10] for worker in workers}
    return [
        Row(
            worker.engine,
            worker.version,
            tenths[worker.engine],
            1e3 * statistics.median(worker.seconds),
            len(worker.seconds),
            worker.cold_seconds,
            worker.ready_seconds,
            worker.peak_mib,
            _difference(worker.results, results[REFERENCE]) if REFERENCE in results else math.nan,
            tenths.get(OURS, math.nan),
            least[worker.engine],
            least.get(OURS, math.nan),
        )
        for worker in workers
    ]


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
