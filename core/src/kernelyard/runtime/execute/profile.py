"""Profile: where the time of a program goes, step by step and within them."""

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
from kernelyard.runtime.abi.module import Part
from kernelyard.runtime.execute.bound_program import BoundProgram, StepHook
from kernelyard.runtime.execute.call_table import CallTable, TimedStep
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.program.program import Program, Step
from kernelyard.runtime.report import VIEW, Report

if TYPE_CHECKING:
    from kernelyard.runtime.device.device import Device
    from kernelyard.runtime.execute.executable import Executable

DEFAULT_CALLS = 10


@dataclass(frozen=True)
class PartTime:
    """A part of a step and what it took: see `kernelyard.runtime.abi.module.Part`."""

    label: str
    implementation: str
    seconds: float
    nbytes: int
    flops: int | None


@dataclass(frozen=True)
class StepTime:
    """A step and what it took.

    label: the model's node. module: the kind of the module that ran function `symbol`. parts: the patterns in a
    library's region, or the operators in a kernel. nbytes: of the tensors that it is given to read and write, without
    what a module holds itself. flops: an estimate; None where it is not known, as in programs with symbolic dims.
    inside: what the step consists of, such as the primitives of a region, in order; nothing where it is one thing.
    """

    label: str
    module: str
    symbol: str
    parts: tuple[str, ...]
    seconds: float
    nbytes: int
    flops: int | None
    inside: tuple[PartTime, ...] = ()


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
    known = _Known(executable)
    return tuple(known.step_time(events) for events in zip(*same, strict=True))


def _inside(events: Sequence[_Event]) -> tuple[PartTime, ...]:
    """Summarize the parts of one step of all runs."""
    times: list[PartTime] = []
    for column in zip(*(event.inside for event in events), strict=True):
        part = column[0][0]
        seconds = statistics.median(seconds for _, seconds in column)
        times.append(PartTime(part.label, part.implementation, seconds, part.nbytes, part.flops))
    return tuple(times)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class _Known:
    """Lookup of the steps of a run in the compile's report."""

    def __init__(self, executable: Executable) -> None:
        self._kinds = [module.kind for module in executable.modules]
        self._report = executable.report if executable.report_json is not None else Report(executable.target)
        self._is_static = not any(symbols_of(dim) for spec in executable.main.inputs for dim in spec.shape)

    def step_time(self, events: Sequence[_Event]) -> StepTime:
        """Summarize one step of all runs."""
        step = events[0].step
        flops = self._flops(step) if self._is_static else None  # the report takes every symbol as one size
        seconds, inside = statistics.median(event.seconds for event in events), _inside(events)
        names = (step.label, self._kinds[step.module], step.symbol, self._parts(step))
        return StepTime(*names, seconds, events[0].nbytes, flops, inside)

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
