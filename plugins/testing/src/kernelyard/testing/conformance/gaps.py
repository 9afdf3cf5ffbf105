"""Gaps from a run: what a backend declined, or computed otherwise, as tables for its `conformance.toml`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.testing.conformance.claims import OUTCOMES
from kernelyard.testing.conformance.scorecard import Line, ScorecardPlugin

if TYPE_CHECKING:
    pass


def gap_tables(lines: Sequence[Line]) -> str:
    """Return TOML with a gap for each failure that a gap may excuse; the widest glob that matches no other case.

    Other failures are comments: errors, crashes, and gaps that have closed.
    """
    failed = [line for line in lines if line.result == "failed"]
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in failed:
        if line.outcome in OUTCOMES:
            groups.setdefault((line.op, line.outcome, _reason(line)), []).append(line)
    tables = [
        f"[[gaps]]\ncases = {json.dumps(glob)}\nreason = {json.dumps(reason)}\noutcome = {json.dumps(outcome)}\n"
        for (op, outcome, reason), members in groups.items()
        for glob in _globs(op, members, lines)
    ]
    others = [line for line in failed if line.outcome not in OUTCOMES]
    comments = [f"# no gap excuses {line.case}: {line.outcome}, {_first_line(line)}" for line in others]
    return "\n".join([*tables, *(["\n".join(comments) + "\n"] if comments else [])])


def _globs(op: str, members: Sequence[Line], lines: Sequence[Line]) -> Iterator[str]:
    """Yield globs that match these cases and no other one of the run that had something to run."""
    wanted = {line.case for line in members}
    others = [line.case for line in lines if line.case not in wanted and line.result != "nothing to run"]
    levels = sorted({line.level for line in members})
    for glob in (f"L? {op}: *", *(f"{level} {op}: *" for level in levels)):
        matched = {case for case in wanted if fnmatchcase(case, glob)}
        if op and matched and not any(fnmatchcase(case, glob) for case in others):
            yield glob
            wanted -= matched
    yield from (escape(case) for case in sorted(wanted))


def _reason(line: Line) -> str:
    """Return why, in the backend's own words where it gave a reason: what follows the pattern and the code."""
    last = line.message.strip().splitlines()[-1] if line.outcome == "declined" else _first_line(line)
    return last.strip() or line.outcome


def _first_line(line: Line) -> str:
    return next(iter(line.message.strip().splitlines()), "")


class GapsPlugin(ScorecardPlugin):
    """Hears of every test and writes the gaps when pytest ends."""

    def pytest_sessionfinish(self) -> None:
        """Write them."""
        Path(self._file).write_text(gap_tables(self.card.lines), encoding="utf-8")
