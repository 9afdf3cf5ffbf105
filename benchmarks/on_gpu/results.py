"""Results of a run: rows, as JSON and as a table; on disk as soon as they are known."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

OURS = ("kernelyard", "kernelyard-tuned")
COMPILED_BY_TORCH = ("compile", "max-autotune")
MAX_FAILURE = 500  # letters


@dataclass(frozen=True)
class Row:
    """An engine on a model, or on a case of kernels.

    error: the largest difference to eager PyTorch, relative to the largest result. rate: in `unit`, such as TFLOP/s.
    note: what a reader of the time should know. failure: why there is no time.
    """

    model: str
    engine: str
    milliseconds: float = 0.0
    error: float = 0.0
    rate: float = 0.0
    unit: str = ""
    note: str = ""
    failure: str = ""

    @classmethod
    def of_failure(cls, model: str, engine: str, error: Exception) -> Row:
        """Return the row of an engine that failed, with the error in one line."""
        return cls(model, engine, failure=" ".join(f"{type(error).__name__}: {error}".split())[:MAX_FAILURE])

    @property
    def time(self) -> str:
        """The milliseconds, with the rate where there is one."""
        return f"{self.milliseconds:.4g}" + (f" ({self.rate:.3g} {self.unit})" if self.unit else "")

    def __str__(self) -> str:
        told = self.failure or f"{self.time} ms, error {self.error:.0e}" + (f", {self.note}" if self.note else "")
        return f"{self.model}, {self.engine}: {told}"


def rows_or_failures(model: str, engines: Sequence[str], measure: Callable[[], list[Row]]) -> list[Row]:
    """Return the rows of a model; where it cannot be measured, why, for each engine, so that other models go on."""
    try:
        return measure()
    except Exception as error:
        return [Row.of_failure(model, engine, error) for engine in engines]


class Column(NamedTuple):
    """A ratio: the fastest of some engines over the fastest of others."""

    title: str
    over: Sequence[str]
    under: Sequence[str]


@dataclass
class Results:
    """The rows of a table. machine: what they were measured on. ratio: the column that compares.

    left_out: models that there was no time for. notes: what the page says below the table.
    """

    machine: str
    ratio: Column
    notes: Sequence[str] = ()
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows; earlier ones of the same engines on the same models go."""
        known = {(row.model, row.engine): row for row in (*self.rows, *rows)}
        self.rows = list(known.values())

    def take_earlier(self, path: Path) -> None:
        """The rows that a file has of the same machine and versions, as of a run that was cut short."""
        if not path.exists():
            return
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["machine"] == self.machine:
            self.rows = [Row(**row) for row in facts["rows"]]

    def write(self, folder: Path, name: str) -> None:
        """NAME.json and NAME.md; a reader sees the earlier ones or the new ones, whole."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"machine": self.machine, "left_out": self.left_out, "rows": [asdict(row) for row in self.rows]}
        for ending, text in (("json", json.dumps(facts, indent=1)), ("md", self.markdown())):
            fresh = folder / f".{name}.{ending}"
            fresh.write_text(text + "\n", encoding="utf-8")
            os.replace(fresh, folder / f"{name}.{ending}")

    def markdown(self) -> str:
        """The table as a page's text."""
        engines = list(dict.fromkeys(row.engine for row in self.rows))
        lines = [self.machine, "", f"| milliseconds | {' | '.join(engines)} | {self.ratio.title} | error |"]
        lines.append(f"|---|{'---:|' * (len(engines) + 2)}")
        for model in dict.fromkeys(row.model for row in self.rows):
            found = {row.engine: row for row in self.rows if row.model == model and not row.failure}
            times = [found[each].time if each in found else "-" for each in engines]
            error = max((row.error for row in found.values()), default=float("nan"))
            lines.append(f"| {model} | {' | '.join(times)} | {self._ratio(found)} | {error:.0e} |")
        remarks = [f"- {row}" for row in self.rows if row.failure]
        remarks += [f"- {row.model}, {row.engine}: {row.note}" for row in self.rows if row.note and not row.failure]
        remarks += [f"- left out for want of time: {', '.join(self.left_out)}"] * bool(self.left_out)
        return "\n".join([*lines, "", *self.notes, *remarks])

    def _ratio(self, found: dict[str, Row]) -> str:
        over = [found[each].milliseconds for each in self.ratio.over if each in found]
        under = [found[each].milliseconds for each in self.ratio.under if each in found]
        return f"{min(over) / min(under):.2f}" if over and under else "-"
