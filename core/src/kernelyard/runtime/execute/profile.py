"""Profile: where the time of a program goes, step by step and within them."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelyard.dims import symbols_of
from kernelyard.errors import ExecutionError
from kernelyard.runtime.abi.module import Part
from kernelyard.runtime.execute.bound_program import BoundProgram, StepHook
from kernelyard.runtime.execute.call_table import CallTable, TimedStep
from kernelyard.runtime.execute.step_nodes import StepNodes
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.program.program import Program, Step
from kernelyard.runtime.report import Report

if TYPE_CHECKING:
    from kernelyard.runtime.device.device import Device
    from kernelyard.runtime.execute.executable import Executable

DEFAULT_CALLS = 10


@dataclass(frozen=True)
class PartTime:
    """A part of a step and what it took: see `kernelyard.runtime.abi.module.Part`. node: of the model, where known."""

    label: str
    implementation: str
    seconds: float
    nbytes: int
    flops: int | None
    node: str = ""


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


@dataclass(frozen=True)
class Profile:
    """The steps in the order in which they ran, each with its median time over `calls` calls.

    call_seconds: the median of whole calls without a clock between the steps, feeds and results included.
    overhead_seconds: the median of calls that take feeds in and results out, and run no step; 0 where it is not known.
    """

    steps: tuple[StepTime, ...]
    call_seconds: float
    calls: int
    overhead_seconds: float = 0.0

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
        from kernelyard.runtime.execute.profile_text import table_lines

        return "\n".join(table_lines(self))

    def __str__(self) -> str:
        return self.table

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON data."""
        names = ("calls", "call_seconds", "seconds", "overhead_seconds", "explained")
        steps = [{**asdict(step), "parts": list(step.parts), "share": self.share(step)} for step in self.steps]
        return {**{name: getattr(self, name) for name in names}, "steps": steps}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the steps, one after the other, as a trace that https://ui.perfetto.dev and chrome://tracing open.

        Raises: OSError.
        """
        from kernelyard.runtime.execute.profile_text import trace_events

        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": trace_events(self)}, indent=1)
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
    call = _caller(machine, feeds)
    kinds = {"whole": call}
    if machine.driver is None and isinstance(executable.main, Program):  # branches would read what no step wrote
        kinds["hollow"] = _caller(_HollowMachine(executable, device, contexts=1), feeds)
    runs: list[list[_Event]] = []

    def decide(
        step: Step, run: Callable[[], None], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        nbytes = sum(array.nbytes for array in (*inputs, *outputs))
        seconds, inside = run.timed() if isinstance(run, TimedStep) else (_seconds(run), ())
        runs[-1].append(_Event(step, nbytes, seconds, inside))

    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    call()
    for _ in range(calls):
        for kind, each in kinds.items():
            each()
            seconds[kind].append(_seconds(each))
        runs.append([])
        machine.environment.step_hook = StepHook(decide, reads=False)
        call()
        machine.environment.step_hook = None
    overhead = statistics.median(seconds["hollow"]) if "hollow" in kinds else 0.0
    return Profile(_steps(executable, runs), statistics.median(seconds["whole"]), calls, overhead)


class _HollowProgram(BoundProgram):
    def _make_table(self) -> CallTable:
        return CallTable(())


class _HollowMachine(VirtualMachine):
    """Its programs take feeds in and results out, and run no step between."""

    bound_program_type = _HollowProgram


def _caller(machine: VirtualMachine, feeds: Mapping[str, Any] | Sequence[Any]) -> Callable[[], object]:
    """Return a call of the main program until its results are there."""
    function = machine.function(machine.executable.main.name)
    if isinstance(feeds, Mapping):
        return lambda: machine.wait(function.run(feeds))
    return lambda: machine.wait(function(*feeds))


class _Event(NamedTuple):
    step: Step
    nbytes: int
    seconds: float
    inside: Sequence[tuple[Part, float]]


def _steps(executable: Executable, runs: Sequence[Sequence[_Event]]) -> tuple[StepTime, ...]:
    """Summarize the last run's steps by their medians.

    The same feeds take the same way. Where that is not so (random numbers may branch), runs like the last count.
    """
    same = [run for run in runs if [event.step for event in run] == [event.step for event in runs[-1]]]
    known = _Known(executable, [event.step for event in same[0]])
    return tuple(known.step_time(events) for events in zip(*same, strict=True))


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class _Known:
    """Lookup of the steps of a run in the compile's report."""

    def __init__(self, executable: Executable, steps: Sequence[Step]) -> None:
        self._modules = executable.modules
        report = executable.report if executable.report_json is not None else Report(executable.target)
        self._nodes, self._of = report.nodes, StepNodes(report, steps)
        self._is_static = not any(symbols_of(dim) for spec in executable.main.inputs for dim in spec.shape)

    def step_time(self, events: Sequence[_Event]) -> StepTime:
        """Summarize one step of all runs."""
        step = events[0].step
        nodes = self._of.nodes(step)
        flops = self._of.flops(nodes) if self._is_static else None  # the report takes every symbol as one size
        seconds, inside = statistics.median(event.seconds for event in events), self._inside(events)
        names = (step.label, self._modules[step.module].kind, step.symbol, self._of.parts(step))
        return StepTime(*names, seconds, events[0].nbytes, flops, inside, nodes)

    def _inside(self, events: Sequence[_Event]) -> tuple[PartTime, ...]:
        """Summarize the parts of one step of all runs."""
        step, times = events[0].step, list[PartTime]()
        groups = self._of.groups(step)
        for column in zip(*(event.inside for event in events), strict=True):
            part = column[0][0]
            seconds = statistics.median(seconds for _, seconds in column)
            group = groups[part.group] if part.group is not None and len(groups) == part.groups else ()
            node = self._nodes[group[-1]].name if group else ""
            times.append(PartTime(part.label, part.implementation, seconds, part.nbytes, part.flops, node))
        return tuple(times)
