"""Profile: the times of a program's steps, as data and as a table."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kernelyard.runtime.text_table import align_rows, amount, duration

MAX_PARTS_SHOWN = 60  # characters
MAX_ROWS = 60  # that the table shows; `steps` has all
_HEAD = ("time", "share", "bytes", "GB/s", "FLOPs", "GFLOP/s", "module", "function", "label", "parts")
OVERHEAD = "feeds in, results out"


@dataclass(frozen=True)
class PartTime:
    """A part of a step and what it took: see `kernelyard.runtime.abi.module.Part`.

    node: of the model, where it is known; nodes: of the report, by number, that the part computes.
    """

    label: str
    implementation: str
    seconds: float
    nbytes: int
    flops: int | None
    node: str = ""
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepTime:
    """A step and what it took.

    label: the model's node. module: the kind of the module that ran function `symbol`. parts: the patterns in a
    library's region, or the operators in a kernel. nbytes: of the tensors that it is given to read and write, without
    what a module holds itself. flops: an estimate; None where it is not known, as in programs with symbolic dims.
    inside: what the step consists of, such as the primitives of a region, in order; nothing where it is one thing.
    nodes: of the report, by number, that the step computes; none where they are not known.
    """

    label: str
    module: str
    symbol: str
    parts: tuple[str, ...]
    seconds: float
    nbytes: int
    flops: int | None
    inside: tuple[PartTime, ...] = ()
    nodes: tuple[int, ...] = ()


class TimedStepRun(NamedTuple):
    """One run of a step; start: by `time.perf_counter`. inside: the seconds of its parts."""

    start: float
    seconds: float
    inside: tuple[float, ...]


class TimedCall(NamedTuple):
    """One call, step by step, with a clock between the steps."""

    start: float
    seconds: float
    steps: tuple[TimedStepRun, ...]


@dataclass(frozen=True)
class Profile:
    """The steps in the order in which they ran, each with its median time over `calls` calls.

    call_seconds: the median of whole calls without a clock between the steps, feeds and results included.
    overhead_seconds: the median of calls that take feeds in and results out, and run no step; 0 where it is not known.
    timeline: the calls whose steps were timed.
    """

    steps: tuple[StepTime, ...]
    call_seconds: float
    calls: int
    overhead_seconds: float = 0.0
    timeline: tuple[TimedCall, ...] = ()

    @property
    def seconds(self) -> float:
        """All steps together."""
        return sum(step.seconds for step in self.steps)

    @property
    def explained(self) -> float:
        """The part of a call's time that steps and overhead add up to; beyond 1 where the clock itself takes time."""
        return (self.seconds + self.overhead_seconds) / self.call_seconds if self.call_seconds else 0.0

    def share(self, step: StepTime) -> float:
        """Return the part of all steps' time that is this step's."""
        return step.seconds / self.seconds if self.seconds else 0.0

    @property
    def table(self) -> str:
        """The steps, slowest first, and the sums of the modules, as a table."""
        return "\n".join(_table_lines(self))

    def __str__(self) -> str:
        return self.table

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON data."""
        names = ("calls", "call_seconds", "seconds", "overhead_seconds", "explained")
        steps = [{**asdict(step), "parts": list(step.parts), "share": self.share(step)} for step in self.steps]
        return {**{name: getattr(self, name) for name in names}, "steps": steps}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timed calls as a trace that https://ui.perfetto.dev and chrome://tracing open.

        Raises: OSError.
        """
        from kernelyard.runtime.profiling.trace import trace_events

        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": trace_events([self])})
        Path(path).write_text(text + "\n", encoding="utf-8")


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


def _table_lines(of: Profile) -> list[str]:
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
    return [*align_rows(shown), *more, f"{counted}; medians of {of.calls} calls", sums, coverage]


def _rows(of: Profile) -> Iterator[_Row]:
    for step in of.steps:
        for part in step.inside:
            names = (step.module, step.symbol, part.node or part.label, _describe_part(part))
            yield _Row(part.seconds, part.nbytes or None, part.flops, names)
        if not step.inside:
            names = (step.module, step.symbol, step.label, _count_parts(step.parts))
            yield _Row(step.seconds, step.nbytes, step.flops, names)
    if of.overhead_seconds:
        yield _Row(of.overhead_seconds, None, None, ("", "", OVERHEAD, ""))


def _describe_part(part: PartTime) -> str:
    """Name a part by what the library does, where its row is named by the model's node."""
    return f"{part.label}: {part.implementation}" if part.node else part.implementation


def _count_parts(parts: Sequence[str]) -> str:
    text = " ".join(part if count == 1 else f"{part}×{count}" for part, count in Counter(parts).items())
    return text if len(text) <= MAX_PARTS_SHOWN else f"{text[: MAX_PARTS_SHOWN - 3]}..."


def _rate(number: int, seconds: float) -> str:
    return f"{number / seconds / 1e9:.3g}" if seconds else ""
