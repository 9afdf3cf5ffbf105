"""Failures by cause: the first few of a cause are printed whole, those that are alike are counted and listed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PRINTED = 3  # failures of one cause that pytest prints whole
ALIKE = "failed alike"  # the category of the others, in pytest's last line
_VARYING = re.compile(r"\d[\d.e+-]*|%[\w.]+")  # numbers, and names of values


class CausesPlugin:
    """Hears of every test where pytest prints them; all failures stay failures for pytest's exit status."""

    def __init__(self) -> None:
        self._by_cause: dict[str, dict[str, str]] = {}  # cause -> node id -> case, in order

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Put a failure into a category of its own if as many of its cause are printed as are of use."""
        facts = dict(getattr(report, "user_properties", ())).get("kernelyard")  # a report of collection has none
        if report.when != "call" or not report.failed or not isinstance(facts, dict):
            return None
        cases = self._by_cause.setdefault(cause_of(facts, report.longreprtext), {})
        cases.setdefault(report.nodeid, facts["case"])
        return (ALIKE, "F", "FAILED (ALIKE)") if list(cases).index(report.nodeid) >= PRINTED else None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the causes of which not all failures were printed, the most frequent first, with every case."""
        found = [(cause, list(cases.values())) for cause, cases in self._by_cause.items() if len(cases) > PRINTED]
        if not found:
            return
        terminalreporter.section("failures by cause")
        for cause, cases in sorted(found, key=lambda each: -len(each[1])):
            printed, alike = cases[:PRINTED], cases[PRINTED:]
            terminalreporter.line(f"{len(cases)} cases: {cause}")
            terminalreporter.line(f"  {len(printed)} are printed above; {len(alike)} fail alike:")
            for case in alike:
                terminalreporter.line(f"    {case}")


def cause_of(facts: dict[str, str], text: str) -> str:
    """Return in a line why a case failed, without what varies between cases that fail alike.

    facts: the verdict. text: what the test said, if it is no message of the case. Numbers that differ do so for one
    reason in each operator and dtype at best.

    Example:
        >>> cause_of({"outcome": "error", "message": "ValueError: 3 is too large"}, "")
        'error: ValueError: # is too large'
    """
    outcome, message = facts["outcome"], facts["message"].strip()
    if outcome == "differs":
        return f"differs: the numbers of {facts['op']} ({facts['dtype']})" if facts["op"] else "differs: the numbers"
    lines = [line.strip() for line in (message or text.strip() or outcome).splitlines()]
    telling = lines[-1:] if outcome == "declined" else lines[:1] + [x for x in lines[1:] if x.startswith("found: ")]
    return f"{outcome}: {_VARYING.sub('#', ', '.join(telling))}"
