"""Scorecard: what came of a run, for machines (JSON) and for people (Markdown)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard import __version__
from kernelyard.plugins.hookspecs import API_VERSION, PROJECT
from kernelyard.runtime.installed.entry_points import distribution_of, find
from kernelyard.testing.conformance.cases import LEVELS

if TYPE_CHECKING:
    import pytest

SCHEMA = 1
RESULTS = ("passed", "failed", "gaps", "nothing to run")
_RESULT_OF = {"passed": "passed", "failed": "failed", "skipped": "nothing to run"}


@dataclass(frozen=True)
class Line:
    """One case: `result` of `RESULTS`, what the backend did (`outcome`), and for a gap its reason."""

    case: str
    op: str
    dtype: str
    result: str
    outcome: str
    message: str
    seconds: float

    @property
    def level(self) -> str:
        """L0 to L5."""
        return self.case.split(" ", 1)[0]


@dataclass
class Scorecard:
    """The cases of a backend and sums over them."""

    backend: str
    dist: str = ""
    version: str = ""
    lines: list[Line] = field(default_factory=list)

    def counts(self, lines: list[Line] | None = None) -> dict[str, int]:
        """Count the cases by result."""
        counted = Counter(line.result for line in (self.lines if lines is None else lines))
        return {result: counted[result] for result in RESULTS}

    @property
    def by_level(self) -> dict[str, dict[str, int]]:
        """Results by level."""
        return {level: self.counts([line for line in self.lines if line.level == level]) for level in LEVELS}

    def to_json(self) -> dict[str, Any]:
        """Return the card as JSON data."""
        return {
            "schema": SCHEMA,
            "backend": self.backend,
            "dist": self.dist,
            "version": self.version,
            "kernelyard": __version__,
            "api": API_VERSION,
            "conforms": self.counts()["failed"] == 0 and self.counts()["passed"] > 0,
            "total": self.counts(),
            "levels": self.by_level,
            "cases": [vars(line) for line in self.lines],
        }

    def to_markdown(self) -> str:
        """Return the card as tables: levels, operators, failures and gaps."""
        total = self.counts()
        verdict = "conforms" if self.to_json()["conforms"] else "does not conform"
        lines = [f"# {self.backend} ({self.dist} {self.version}) {verdict}", ""]
        lines += [f"Kernelyard {__version__}, plugin API {API_VERSION}: {_sentence(total)}.", ""]
        rows = [(f"{level} {LEVELS[level]}", counts) for level, counts in self.by_level.items()]
        lines += _table("level", [*rows, ("all", total)])
        ops = sorted({line.op for line in self.lines if line.op})
        lines += _table("operator", [(f"`{op}`", self.counts([x for x in self.lines if x.op == op])) for op in ops])
        for title, result in (("Failures", "failed"), ("Gaps", "gaps")):
            found = [f"- {line.case}: {line.message.splitlines()[0]}" for line in self.lines if line.result == result]
            lines += [f"## {title}", "", *found, ""] if found else []
        return "\n".join(lines)

    def write(self, file: str) -> None:
        """FILE.json and FILE.md; a suffix of these in FILE is left out."""
        path = Path(file)
        path = path.with_suffix("") if path.suffix in (".json", ".md") else path
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        path.with_name(f"{path.name}.json").write_text(text, encoding="utf-8")
        path.with_name(f"{path.name}.md").write_text(self.to_markdown(), encoding="utf-8")


def _sentence(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {result}" for result, count in counts.items())


def _table(head: str, rows: list[tuple[str, dict[str, int]]]) -> list[str]:
    lines = [f"| {head} | {' | '.join(RESULTS)} |", f"|---|{'---|' * len(RESULTS)}"]
    lines += [f"| {name} | {' | '.join(str(counts[result]) for result in RESULTS)} |" for name, counts in rows]
    return [*lines, ""]


class ScorecardPlugin:
    """Hears of every test and writes the card when pytest ends."""

    def __init__(self, backend: str, file: str) -> None:
        entries = [entry for entry in find(PROJECT).entries if entry.name == backend]
        self.card = Scorecard(backend, *(distribution_of(entries[0]) if entries else ("", "")))
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Enter a case."""
        facts = dict(report.user_properties).get("kernelyard")
        if report.when != "call" or not isinstance(facts, dict):
            return
        is_gap = report.skipped and hasattr(report, "wasxfail")
        result = "gaps" if is_gap else _RESULT_OF[report.outcome]
        message = getattr(report, "wasxfail", "") if is_gap else facts["message"] or _first_line(report, result)
        self.card.lines.append(Line(**{**facts, "result": result, "message": message.removeprefix("reason: ")}))

    def pytest_sessionfinish(self) -> None:
        """Write it."""
        self.card.write(self._file)


def _first_line(report: pytest.TestReport, result: str) -> str:
    return report.longreprtext.strip().splitlines()[0] if result == "failed" else ""
