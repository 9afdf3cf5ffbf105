"""A profile as a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelyard.runtime.text_table import aligned, amount, duration

if TYPE_CHECKING:
    from kernelyard.runtime.execute.profile import PartTime, Profile

MAX_PARTS_SHOWN = 60  # characters
MAX_ROWS = 60  # that the table shows; `steps` has all
_HEAD = ("time", "share", "bytes", "GB/s", "FLOPs", "GFLOP/s", "module", "function", "label", "parts")
OVERHEAD = "feeds in, results out"


class _Row(NamedTuple):
    seconds: float
    nbytes: int | None
    flops: int | None
    names: tuple[str, str, str, str]

    def cells(self, call_seconds: float) -> tuple[str, ...]:
        share = f"{100 * self.seconds / call_seconds:.1f} %" if call_seconds else ""
        rates = [
            cell
            for number in (self.nbytes, self.flops)
            for cell in (("", "") if number is None else (amount(number), _rate(number, self.seconds)))
        ]
        return (duration(self.seconds), share, *rates, *self.names)


def table_lines(of: Profile) -> list[str]:
    """Format the steps, or their parts where known, slowest first, as shares of a call."""
    rows = sorted(_rows(of), key=lambda row: -row.seconds)
    more = [f"... and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
    shown = [_HEAD, *(row.cells(of.call_seconds) for row in rows[:MAX_ROWS])]
    modules: dict[str, float] = {}
    for step in of.steps:
        modules[step.module] = modules.get(step.module, 0.0) + step.seconds
    sums = " · ".join(
        f"{module} {duration(seconds)} ({100 * seconds / of.seconds if of.seconds else 0:.1f} %)"
        for module, seconds in sorted(modules.items(), key=lambda item: -item[1])
    )
    counted = f"{len(of.steps)} steps {duration(of.seconds)}; a whole call {duration(of.call_seconds)}"
    overhead = f" and {OVERHEAD} {duration(of.overhead_seconds)}" if of.overhead_seconds else ""
    coverage = f"steps{overhead} explain {100 * of.explained:.1f} % of a call"
    return [*aligned(shown), *more, f"{counted}; medians of {of.calls} calls", sums, coverage]


def _rows(of: Profile) -> Iterator[_Row]:
    for step in of.steps:
        for part in step.inside:
            names = (step.module, step.symbol, part.node or part.label, _inside(part))
            yield _Row(part.seconds, part.nbytes or None, part.flops, names)
        if not step.inside:
            names = (step.module, step.symbol, step.label, _counted(step.parts))
            yield _Row(step.seconds, step.nbytes, step.flops, names)
    if of.overhead_seconds:
        yield _Row(of.overhead_seconds, None, None, ("", "", OVERHEAD, ""))


def _inside(part: PartTime) -> str:
    """Name a part by what the library does, where its row is named by the model's node."""
    return f"{part.label}: {part.implementation}" if part.node else part.implementation


def _counted(parts: Sequence[str]) -> str:
    text = " ".join(part if count == 1 else f"{part}×{count}" for part, count in Counter(parts).items())
    return text if len(text) <= MAX_PARTS_SHOWN else f"{text[: MAX_PARTS_SHOWN - 3]}..."


def _rate(number: int, seconds: float) -> str:
    return f"{number / seconds / 1e9:.3g}" if seconds else ""
