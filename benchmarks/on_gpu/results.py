"""What is kept of a run: rows, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """An engine on a model. error: the largest difference to eager PyTorch, relative to the largest result."""

    model: str
    engine: str
    milliseconds: float = 0.0
    error: float = 0.0
    failure: str = ""


def markdown(rows: Sequence[Row], line: str) -> str:
    """The table as a page's text."""
    engines = list(dict.fromkeys(row.engine for row in rows))
    lines = [line, "", f"| model | {' | '.join(engines)} | torch.compile / ours | error |"]
    lines.append(f"|---|{'---:|' * (len(engines) + 2)}")
    for model in dict.fromkeys(row.model for row in rows):
        found = {row.engine: row for row in rows if row.model == model and not row.failure}
        times = [f"{found[each].milliseconds:.4g}" if each in found else "-" for each in engines]
        own, other = found.get("kernelyard"), found.get("torch.compile")
        ratio = f"{other.milliseconds / own.milliseconds:.2f}" if own and other else "-"
        lines.append(f"| {model} | {' | '.join(times)} | {ratio} | {own.error if own else float('nan'):.0e} |")
    failures = [f"- {row.model}, {row.engine}: {row.failure}" for row in rows if row.failure]
    return "\n".join([*lines, "", *failures])
