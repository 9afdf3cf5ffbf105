"""Text for people: tables and lines are folded to the width that there is, and say the same in every width."""

from __future__ import annotations

import pytest

from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import DeclinedMatch, Placed, PlacedRegion, Violation
from kernelyard.runtime.text_table import LEAST, align_rows, fold

ROWS = [
    ("declined by", "code", "node", "why"),
    ("acme", "no-match", "node 'encoder.layer.11.attention.output' (Add)", "expected tanh, found floor " * 6),
    ("a-much-longer-backend-name", "dtype", "n", ""),
]
REPORT = Report(
    "cpu",
    placed=tuple(Placed("acme", f"family.operator_{i}", i + 1, 1000 * i, 100) for i in range(30)),
    regions=(PlacedRegion("acme", "acme.chain", ("matmul",) * 20, "acme_0", "node 0"),),
    declined=(
        DeclinedMatch("other", "other.pattern", "node 'a.b.c.d' (Gather)", "take", "dtype", "not for int8 " * 12),
    ),
    violations=(Violation("acme", ("acme_7",), "it said yes, and then raised an error " * 4),),
)


def letters(text: str) -> list[str]:
    return sorted(text.replace(" ", "").replace("\n", ""))


@pytest.mark.parametrize("width", [44, 60, 80, 100, 10_000])
def test_tables_fit_and_lose_nothing(width: int) -> None:
    lines = align_rows(ROWS, width)
    assert max(map(len, lines)) <= width
    assert letters("".join(lines)) == letters("".join(cell for row in ROWS for cell in row))


def test_a_table_that_fits_is_aligned() -> None:
    assert (
        align_rows([("a", "bb"), ("ccc", "d")], 80) == align_rows([("a", "bb"), ("ccc", "d")]) == ["a    bb", "ccc  d"]
    )
    assert align_rows([]) == []


def test_a_width_that_nothing_fits_in_still_shows_everything() -> None:
    lines = align_rows(ROWS, 3)
    assert letters("".join(lines)) == letters("".join(cell for row in ROWS for cell in row))
    assert all(line.strip() or not line for line in lines)
    assert max(map(len, fold("      " + "word " * 9, 3))) <= 6 + LEAST


@pytest.mark.parametrize("width", [60, 80, 120])
def test_reports_fit_the_terminal(width: int) -> None:
    text = REPORT.text(width)
    assert max(map(len, text.splitlines())) <= width
    assert letters(text) == letters(str(REPORT))
