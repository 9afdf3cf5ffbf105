"""Profile: where the time of a program goes, step by step, as a table and as a trace for Perfetto or Chrome."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelyard.dims import symbols_of
from kernelyard.errors import ExecutionError
from kernelyard.runtime.instance import Around
from kernelyard.runtime.program import Step
from kernelyard.runtime.report import VIEW, Report
from kernelyard.runtime.text_table import aligned, amount
from kernelyard.runtime.vm import VirtualMachine

if TYPE_CHECKING:
    from kernelyard.runtime.device import Device
    from kernelyard.runtime.executable import Executable

DEFAULT_CALLS = 10
MAX_PARTS_SHOWN = 60  # characters
MAX_ROWS = 60  # steps that the table shows; `steps` has all


@dataclass(frozen=True)
class StepTime:
    """A step and what it took.

    label: the model's node. module: the kind of the module that ran function `symbol`. parts: the patterns in a
    library's region, or the operators in a kernel. nbytes: of the tensors that it is given to read and write, without
    what a module holds itself. flops: an estimate; None where it is not known, as in programs with symbolic dims.
    """

    label: str
    module: str
    symbol: str
    parts: tuple[str, ...]
    seconds: float
    nbytes: int
    flops: int | None


@dataclass(frozen=True)
class Profile:
    """The steps in the order in which they ran, each with its median time over `calls` calls.

    call_seconds: the median of whole calls without a clock between the steps, feeds and results included.
    """

    steps: tuple[StepTime, ...]
    call_seconds: float
    calls: int

    @property
    def seconds(self) -> float:
        """All steps together."""
        return sum(step.seconds for step in self.steps)

    def share(self, step: StepTime) -> float:
        """The part of all steps' time that is this step's."""
        return step.seconds / self.seconds if self.seconds else 0.0

    @property
    def table(self) -> str:
        """The slowest steps first, and the modules' sums."""
        return "\n".join(_table_lines(self))

    def __str__(self) -> str:
        return self.table

    def to_json(self) -> dict[str, Any]:
        """The profile as JSON data."""
        steps = [{**asdict(step), "parts": list(step.parts), "share": self.share(step)} for step in self.steps]
        return {"calls": self.calls, "call_seconds": self.call_seconds, "seconds": self.seconds, "steps": steps}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the steps, one after the other, as a trace that https://ui.perfetto.dev and chrome://tracing open.

        Raises: OSError.
        """
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": _trace_events(self)}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")


def profile(
    executable: Executable,
    feeds: Mapping[str, Any] | Sequence[Any],
    calls: int = DEFAULT_CALLS,
    device: Device | None = None,
) -> Profile:
    """Measure the main program on feeds by name or by position, on a virtual machine of its own.

    The first call, which prepares, is not measured. Raises: as running the program; ExecutionError for no calls.
    """
    if calls < 1:
        raise ExecutionError("nothing to measure", found=f"calls={calls}", expected="at least 1")
    machine = VirtualMachine(executable, device, contexts=1)
    function = machine.function(executable.main.name)
    call = (lambda: function.run(feeds)) if isinstance(feeds, Mapping) else (lambda: function(*feeds))
    call()
    whole = [_seconds(lambda: machine.wait(call())) for _ in range(calls)]
    runs: list[list[_Event]] = []

    def around(
        step: Step, run: Callable[[], None], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        nbytes = sum(array.nbytes for array in (*inputs, *outputs))
        runs[-1].append(_Event(step, nbytes, _seconds(run)))

    machine.around = Around(around, reads=False)
    for _ in range(calls):
        runs.append([])
        call()
    # The same feeds take the same way. Where that is not so (random numbers may branch), calls like the last count.
    same = [run for run in runs if [event.step for event in run] == [event.step for event in runs[-1]]]
    known = _Known(executable)
    steps = [
        known.step_time(event, statistics.median(run[number].seconds for run in same))
        for number, event in enumerate(runs[-1])
    ]
    return Profile(tuple(steps), statistics.median(whole), calls)


class _Event(NamedTuple):
    step: Step
    nbytes: int
    seconds: float


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class _Known:
    """What the report knows of steps."""

    def __init__(self, executable: Executable) -> None:
        self._kinds = [module.kind for module in executable.modules]
        self._report = executable.report if executable.report_json is not None else Report(executable.target)
        self._is_static = not any(symbols_of(dim) for spec in executable.main.inputs for dim in spec.shape)

    def step_time(self, event: _Event, seconds: float) -> StepTime:
        step = event.step
        flops = self._flops(step) if self._is_static else None  # the report takes every symbol as one size
        kind = self._kinds[step.module]
        return StepTime(step.label, kind, step.symbol, self._parts(step), seconds, event.nbytes, flops)

    def _parts(self, step: Step) -> tuple[str, ...]:
        patterns = tuple(region.pattern for region in self._report.regions if region.function == step.symbol)
        kernel = next((kernel for kernel in self._report.kernels if kernel.name == step.symbol), None)
        return patterns or (kernel.ops if kernel is not None else ())

    def _flops(self, step: Step) -> int | None:
        region = [node.flops for node in self._report.nodes if node.function == step.symbol]
        return sum(region) if region else self._kernel_flops(step)

    def _kernel_flops(self, step: Step) -> int | None:
        """Of the ops in a kernel: found from the node that the step is called after, back through what it reads."""
        nodes = self._report.nodes
        missing = Counter(self._parts(step))
        reached = deque(n for n, node in enumerate(nodes) if node.name == step.label and not node.function)
        seen, flops = set(reached), 0
        while reached and missing.total():
            node = nodes[reached.popleft()]
            if missing[node.op]:
                missing[node.op] -= 1
                flops += node.flops
            elif node.backend != VIEW:
                continue
            sources = [number for number in node.inputs if number not in seen and not nodes[number].function]
            seen.update(sources)
            reached.extend(sources)
        return flops if flops and not missing.total() else None


# --- the table and the trace ------------------------------------------------------------------------------------------
def _table_lines(of: Profile) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("time", "share", "bytes", "GB/s", "FLOPs", "GFLOP/s", "module", "function", "label", "parts")
    ]
    rows += [_row(of, step) for step in sorted(of.steps, key=lambda step: -step.seconds)[:MAX_ROWS]]
    more = [f"... and {len(of.steps) - MAX_ROWS} more steps"] if len(of.steps) > MAX_ROWS else []
    modules: dict[str, float] = {}
    for step in of.steps:
        modules[step.module] = modules.get(step.module, 0.0) + step.seconds
    sums = " · ".join(
        f"{module} {_duration(seconds)} ({100 * seconds / of.seconds if of.seconds else 0:.1f} %)"
        for module, seconds in sorted(modules.items(), key=lambda item: -item[1])
    )
    counted = f"{len(of.steps)} steps {_duration(of.seconds)}; a whole call {_duration(of.call_seconds)}"
    return [*aligned(rows), *more, f"{counted}; medians of {of.calls} calls", sums]


def _row(of: Profile, step: StepTime) -> tuple[str, ...]:
    rates = (amount(step.nbytes), _rate(step.nbytes, step.seconds))
    work = ("", "") if step.flops is None else (amount(step.flops), _rate(step.flops, step.seconds))
    names = (step.module, step.symbol, step.label, _counted(step.parts))
    return (_duration(step.seconds), f"{100 * of.share(step):.1f} %", *rates, *work, *names)


def _trace_events(of: Profile) -> list[dict[str, Any]]:
    modules = list(dict.fromkeys(step.module for step in of.steps))
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "kernelyard"}}]
    events += [
        {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": module}}
        for number, module in enumerate(modules, start=1)
    ]
    start = 0.0
    for step in of.steps:
        facts = {"symbol": step.symbol, "bytes": step.nbytes, "flops": step.flops, "share": of.share(step)}
        events.append(
            {
                "ph": "X",
                "pid": 1,
                "tid": 1 + modules.index(step.module),
                "name": step.label or step.symbol,
                "cat": step.module,
                "ts": start * 1e6,
                "dur": step.seconds * 1e6,
                "args": {**facts, "parts": list(step.parts)},
            }
        )
        start += step.seconds
    return events


def _counted(parts: Sequence[str]) -> str:
    text = " ".join(part if count == 1 else f"{part}×{count}" for part, count in Counter(parts).items())
    return text if len(text) <= MAX_PARTS_SHOWN else f"{text[: MAX_PARTS_SHOWN - 3]}..."


def _rate(number: int, seconds: float) -> str:
    return f"{number / seconds / 1e9:.3g}" if seconds else ""


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
