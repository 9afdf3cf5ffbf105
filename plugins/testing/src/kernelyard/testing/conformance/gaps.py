"""Gaps from a run: what a backend declined, or computed otherwise, as tables for its `conformance.toml`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.testing.conformance.cases import all_cases
from kernelyard.testing.conformance.claims import OUTCOMES, Claims, Gap, read_claims
from kernelyard.testing.conformance.scorecard import Line, ScorecardPlugin

if TYPE_CHECKING:
    pass


def gaps_of(lines: Sequence[Line]) -> list[Gap]:
    """Return a gap for each failure that one may excuse; the widest globs that match no other case of the run."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        if line.result == "failed" and line.outcome in OUTCOMES:
            groups.setdefault((line.op, line.outcome, _reason(line)), []).append(line)
    return [
        Gap(glob, reason, outcome)
        for (op, outcome, reason), members in groups.items()
        for glob in _globs(op, members, lines)
    ]


def drop_idle(gaps: Sequence[Gap], backend: str, claims: Claims) -> list[Gap]:
    """Return the gaps that are about a case once all of them are claimed: chains are tried on samples that hold."""
    claimed = replace(claims, gaps=(*claims.gaps, *gaps))
    found = [claimed.gap_of(case) for case in all_cases(backend, claimed)]
    return [gap for gap in gaps if any(each is gap for each in found)]


def gap_tables(gaps: Sequence[Gap], lines: Sequence[Line]) -> str:
    """Return gaps as TOML, and as comments what no gap excuses: errors, crashes, and gaps that have closed."""
    tables = [
        f"[[gaps]]\ncases = {json.dumps(gap.cases)}\nreason = {json.dumps(gap.reason)}\n"
        f"outcome = {json.dumps(gap.outcome)}\n"
        for gap in gaps
    ]
    others = [line for line in lines if line.result == "failed" and line.outcome not in OUTCOMES]
    comments = [f"# no gap excuses {line.case}: {line.outcome}, {_first_line(line)}" for line in others]
    return "\n".join([*tables, *(["\n".join(comments) + "\n"] if comments else [])])


def _globs(op: str, members: Sequence[Line], lines: Sequence[Line]) -> Iterator[str]:
    """Yield globs that match these cases, and of the run no case that holds or fails otherwise."""
    alike = [("failed", members[0].outcome), ("nothing to run", "nothing")]  # for whatever reason
    others = [line.case for line in lines if (line.result, line.outcome) not in alike]
    wanted = {line.case for line in members}
    for glob in _candidates(op, members) if op else ():
        matched = set(filter(partial(fnmatchcase, pat=glob), wanted))
        if matched and not any(map(partial(fnmatchcase, pat=glob), others)):
            yield glob
            wanted -= matched
    yield from map(escape, sorted(wanted))


def _candidates(op: str, members: Sequence[Line]) -> Iterator[str]:
    """Yield globs for an operator, the widest first: all levels, one of them, one of them but for the form `constants`
    (weights that have to be packed at compile), one sample."""
    levels = sorted({line.level for line in members})
    yield f"L? {op}: *"
    yield from (f"{level} {op}: *" for level in levels)
    yield from (f"{level} {op}: * (*, [!c]*)" for level in levels)
    samples = {line.case.partition(": ")[2].rpartition(" (")[0] for line in members}
    yield from (f"L? {op}: {escape(sample)} (*" for sample in sorted(samples) if sample)


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
        lines, backend = self.card.lines, self.card.backend
        if not lines:  # nothing ran: claims that cannot be read, or no backend, which pytest has said
            return
        gaps = drop_idle(gaps_of(lines), backend, read_claims(backend))
        Path(self._file).write_text(gap_tables(gaps, lines), encoding="utf-8")
