"""Every core ATen operator on PyTorch's own samples; docs/torch-coverage.md is written from what comes out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernelyard.errors import KernelyardError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest: make test-torch")

from opinfo import DTYPES_TRIED, RecordedCall, recorded  # noqa: E402
from opinfo_engines import ENGINES, Case, imported, problems  # noqa: E402

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


@dataclass
class Counts:
    """rows: by operator and dtype how many calls agree on every engine, of how many. engines: how many agree on each.

    reasons: why others do not, and how many.
    """

    rows: dict[str, Row]
    engines: Counter[str]
    reasons: Counter[str]


def counted() -> Counts:
    calls = [(op, dtype, call) for (op, dtype), several in sorted(recorded().items()) for call in several]
    found: dict[str, Case | str] = {f"call_{number}": _imported(f"call_{number}", *c) for number, c in enumerate(calls)}
    cases = [case for case in found.values() if isinstance(case, Case)]
    by_engine = {engine: problems(engine, cases) for engine in ENGINES}
    counts = Counts({}, Counter(), Counter())
    for (op, dtype, _), (name, case) in zip(calls, found.items(), strict=True):
        why = {engine: case if isinstance(case, str) else by_engine[engine][name] for engine in ENGINES}
        good, total = counts.rows.setdefault(op, {}).get(dtype, (0, 0))
        counts.rows[op][dtype] = good + (not any(why.values())), total + 1
        counts.engines.update(engine for engine, problem in why.items() if not problem)
        counts.reasons.update(f"{op} {dtype} {engine}: {problem}" for engine, problem in why.items() if problem)
    return counts


def _imported(name: str, op: str, dtype: str, call: RecordedCall) -> Case | str:
    """A call as a case, or why it is refused."""
    try:
        return imported(name, call)
    except KernelyardError as error:
        return f"{error.code} {error.message}"


def passes(row: Row) -> bool:
    return all(good == total for good, total in row.values())


def table(counts: Counts, core: set[str]) -> str:
    rows = counts.rows
    whole = sum(1 for op in core if op in rows and passes(rows[op]))
    total = sum(cell[1] for row in rows.values() for cell in row.values())
    engines = ", ".join(f"{engine} {counts.engines[engine]}" for engine in ENGINES)
    lines = [
        f"Of {whole} of the {len(core)} operators every call agrees with PyTorch on every engine.",
        f"Calls that agree, of {total}: {engines}.",
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
    core, counts = core_operators(), counted()
    assert set(counts.rows) <= core
    agreeing = {op for op, row in counts.rows.items() if passes(row)}
    why = "\n".join(f"{count} {reason}" for reason, count in counts.reasons.items())
    assert len(agreeing) >= LEAST_SHARE * len(core), why
    page = PAGE.read_text(encoding="utf-8")
    written, replaced = TABLE.subn(lambda match: match[1] + table(counts, core) + "\n" + match[2], page)
    assert replaced == 1
    if request.config.getoption("--update-golden"):
        PAGE.write_text(written, encoding="utf-8")
    else:
        assert written == page, f"the table has changed; --update-golden writes it\n{why}"
