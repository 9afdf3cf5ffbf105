"""A profile as rows called after the model's nodes, with rates against the machine's roof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kernelyard.runtime.text_table import align_rows, amount, duration
from kernelyard_view.names import plain_name

if TYPE_CHECKING:
    from kernelyard.runtime.profiling.profile import Profile

HEAD = ("time", "share", "bytes", "GB/s", "GFLOP/s", "of the roof", "runs as", "node")
MAX_ROWS = 40


class Row(NamedTuple):
    """Time one step, or one part of a library's step. flops: None where they are not known."""

    seconds: float
    nbytes: int
    flops: int | None
    runs_as: str
    node: str

    def cells(self, call_seconds: float, roof: Mapping[str, float]) -> tuple[str, ...]:
        """Return the row as text."""
        share = f"{100 * self.seconds / call_seconds:.1f} %" if call_seconds else ""
        gbytes, gflops = (n / self.seconds / 1e9 if n and self.seconds else 0.0 for n in (self.nbytes, self.flops))
        rates = tuple(f"{rate:.3g}" if rate else "" for rate in (gbytes, gflops))
        bytes_ = amount(self.nbytes) if self.nbytes else ""
        return (duration(self.seconds), share, bytes_, *rates, _near(gbytes, gflops, roof), self.runs_as, self.node)


def _near(gbytes: float, gflops: float, roof: Mapping[str, float]) -> str:
    """Return the nearer of the two limits; bytes that move faster than memory come from a cache."""
    near = max(gflops / roof["gflops"], gbytes / roof["gbytes"]) if roof else 0.0
    if near and gflops / roof["gflops"] < 1 < gbytes / roof["gbytes"]:
        return "in cache"
    return f"{100 * near:.0f} %" if near else ""


def rows_of(profile: Profile) -> list[Row]:
    """Return the steps, or their parts where known, slowest first."""
    rows: list[Row] = []
    for step in profile.steps:
        where = f"{step.module} {step.symbol}"
        for part in step.inside:
            name = plain_name(part.node) or part.label
            rows.append(Row(part.seconds, part.nbytes, part.flops, f"{step.module} {part.implementation}", name))
        if not step.inside:
            rows.append(Row(step.seconds, step.nbytes, step.flops, where, plain_name(step.label)))
    return sorted(rows, key=lambda row: -row.seconds)


def step_lines(profile: Profile, roof: Mapping[str, float], width: int | None, most: int = MAX_ROWS) -> list[str]:
    """Format a profile as a table, with a line on the call and one on the roof below it."""
    rows = rows_of(profile)
    shown = [HEAD, *(row.cells(profile.call_seconds, roof) for row in rows[:most])]
    more = [f"... and {len(rows) - most} more"] if len(rows) > most else []
    told = f"{len(profile.steps)} steps {duration(profile.seconds)}; a whole call {duration(profile.call_seconds)}"
    limits = f"the machine's roof: {roof['gflops']:.0f} GFLOP/s, {roof['gbytes']:.0f} GB/s" if roof else ""
    return [
        *align_rows(shown, width),
        *more,
        f"{told}; medians of {profile.calls} calls",
        *([limits] if limits else []),
    ]
