"""Every core ATen operator on PyTorch's own samples; docs/torch-coverage.md is written from what comes out."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernelyard.errors import KernelyardError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest: make test-torch")

from opinfo import DTYPES_TRIED, outcome, recorded  # noqa: E402

from kernelyard_torch.tensors import DTYPES  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "torch-coverage.md"
TABLE = re.compile(r"(<!-- generated: coverage -->\n\n).*?(<!-- end -->)", re.DOTALL)
NAMES = [DTYPES[dtype] for dtype in DTYPES_TRIED]
LEAST_SHARE = 0.9


def core_operators() -> set[str]:
    """The operators that PyTorch tags as its core set, as far as they are functions of tensors to tensors."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    overloads = [getattr(p, name) for p in packets if hasattr(p, "overloads") for name in p.overloads()]
    return {str(op) for op in overloads if torch.Tag.core in op.tags and _is_function(op)}


def _is_function(op: Any) -> bool:
    """Neither what writes to its arguments, which no exported program has, nor what gives sizes or numbers."""
    return not op._schema.is_mutable and any("Tensor" in str(each.type) for each in op._schema.returns)


Row = dict[str, tuple[int, int]]


def counted() -> tuple[dict[str, Row], Counter[str]]:
    """By operator and dtype how many calls agree, of how many; and why others do not."""
    rows: dict[str, Row] = {}
    reasons: Counter[str] = Counter()
    for (op, dtype), calls in sorted(recorded().items()):
        problems = []
        for call in calls:
            try:
                problems.append(outcome(call))
            except KernelyardError as error:  # refused, with a reason
                problems.append(f"{error.code} {error.message}")
        rows.setdefault(op, {})[dtype] = (problems.count(""), len(problems))
        reasons.update(f"{op} {dtype}: {problem}" for problem in problems if problem)
    return rows, reasons


def passes(row: Row) -> bool:
    return all(good == total for good, total in row.values())


def table(rows: dict[str, Row], core: set[str]) -> str:
    whole = sum(1 for op in core if op in rows and passes(rows[op]))
    good, total = (sum(cell[i] for op in core for cell in rows.get(op, {}).values()) for i in (0, 1))
    lines = [
        f"Of {whole} of the {len(core)} operators every call agrees with PyTorch. Calls that agree: {good} of {total}.",
        "",
        f"| operator | {' | '.join(NAMES)} | other |",
        f"|---|{'---|' * (len(NAMES) + 1)}",
    ]
    for op in sorted(core):
        cells = [_cell([rows.get(op, {}).get(name, (0, 0))]) for name in NAMES]
        other = [cell for name, cell in rows.get(op, {}).items() if name not in NAMES]
        lines.append(f"| `{op}` | {' | '.join(cells)} | {_cell(other)} |")
    return "\n".join(lines) + "\n"


def _cell(cells: list[tuple[int, int]]) -> str:
    good, total = sum(c[0] for c in cells), sum(c[1] for c in cells)
    return f"{good}/{total}" if total else ""


def test_core_operators(request: pytest.FixtureRequest) -> None:
    core = core_operators()
    rows, reasons = counted()
    agreeing = {op for op in core if op in rows and passes(rows[op])}
    assert len(agreeing) >= LEAST_SHARE * len(core), "\n".join(f"{count} {why}" for why, count in reasons.items())
    page = PAGE.read_text(encoding="utf-8")
    written, count = TABLE.subn(lambda match: match[1] + table(rows, core) + "\n" + match[2], page)
    assert count == 1
    if request.config.getoption("--update-golden"):
        PAGE.write_text(written, encoding="utf-8")
    else:
        assert written == page, "the table has changed; --update-golden writes it"
