"""Profiler: measure where the time of a program goes, step by step and within them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelyard.dims import symbols_of
from kernelyard.errors import ExecutionError
from kernelyard.runtime.abi.module import Part
from kernelyard.runtime.execute.bound_program import BoundProgram, StepHook
from kernelyard.runtime.execute.call_table import CallTable, TimedStep
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.profiling.profile import PartTime, Profile, StepTime, TimedCall, TimedStepRun
from kernelyard.runtime.profiling.step_nodes import StepNodes
from kernelyard.runtime.program.program import Program, Step
from kernelyard.runtime.report import Report

if TYPE_CHECKING:
    from kernelyard.runtime.device.device import Device
    from kernelyard.runtime.execute.compiled_model import CompiledModel

DEFAULT_CALLS = 10


def profile(
    executable: CompiledModel,
    feeds: Mapping[str, Any] | Sequence[Any],
    calls: int = DEFAULT_CALLS,
    device: Device | None = None,
    watch: Callable[[Callable[[], Profile]], object] | None = None,
) -> Profile:
    """Measure the main program on feeds by name or by position, on a virtual machine of its own.

    The first call, which prepares, is not measured. watch: is given, after each call, a function that makes the profile
    so far. Raises: as running the program; ExecutionError for no calls.
    """
    if calls < 1:
        raise ExecutionError("nothing to measure", found=f"calls={calls}", expected="at least 1")
    measured = _Measurement(executable, feeds, device)
    for _ in range(calls):
        measured.add()
        if watch is not None:
            watch(measured.profile)
    return measured.profile()


class _Measurement:
    """The calls that were measured so far: whole, without their steps, and step by step."""

    def __init__(
        self, executable: CompiledModel, feeds: Mapping[str, Any] | Sequence[Any], device: Device | None
    ) -> None:
        self._executable = executable
        self._machine = VirtualMachine(_copy_for_profiling(executable), device, contexts=1)
        self._call = _caller(self._machine, feeds)
        self._kinds = {"whole": self._call}
        if self._machine.driver is None and isinstance(executable.main, Program):  # else steps read what none wrote
            self._kinds["hollow"] = _caller(_HollowMachine(executable, device, contexts=1), feeds)
        self._seconds: dict[str, list[float]] = {kind: [] for kind in self._kinds}
        self._spans: list[tuple[float, float]] = []
        self._runs: list[list[_Event]] = []
        self._call()

    def add(self) -> None:
        """Measure a call of each kind."""
        for kind, each in self._kinds.items():
            each()
            self._seconds[kind].append(_seconds(each))
        self._runs.append([])
        self._machine.environment.step_hook = StepHook(self._decide, reads=False)
        try:
            self._spans.append((time.perf_counter(), _seconds(self._call)))
        finally:
            self._machine.environment.step_hook = None

    def _decide(
        self, step: Step, run: Callable[[], None], inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        nbytes = sum(array.nbytes for array in (*inputs, *outputs))
        start = time.perf_counter()
        seconds, inside = run.run_timed() if isinstance(run, TimedStep) else (_seconds(run), ())
        self._runs[-1].append(_Event(step, nbytes, start, seconds, inside))

    def profile(self) -> Profile:
        """Return the medians of all calls so far.

        The same feeds take the same way. Where that is not so (random numbers may branch), calls like the last count.
        """
        steps = [event.step for event in self._runs[-1]]
        same = [
            (span, run)
            for span, run in zip(self._spans, self._runs, strict=True)
            if [event.step for event in run] == steps
        ]
        known = _Known(self._executable, steps)
        times = tuple(known.step_time(events) for events in zip(*(run for _, run in same), strict=True))
        overhead = statistics.median(self._seconds["hollow"]) if "hollow" in self._seconds else 0.0
        timeline = tuple(_summarize_call(*span, run) for span, run in same)
        return Profile(times, statistics.median(self._seconds["whole"]), len(self._runs), overhead, timeline)


def _copy_for_profiling(executable: CompiledModel) -> CompiledModel:
    """Return the same executable with `is_profiled` set, so that modules bind their profiled variants."""
    same = object.__new__(type(executable))  # a copy would go by way of the artifact
    vars(same).update(vars(executable), is_profiled=True)
    return same


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
    start: float
    seconds: float
    inside: Sequence[tuple[Part, float]]


def _summarize_call(start: float, seconds: float, run: Sequence[_Event]) -> TimedCall:
    steps = (TimedStepRun(event.start, event.seconds, tuple(part for _, part in event.inside)) for event in run)
    return TimedCall(start, seconds, tuple(steps))


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class _Known:
    """Lookup of the steps of a run in the compile's report."""

    def __init__(self, executable: CompiledModel, steps: Sequence[Step]) -> None:
        self._modules = executable.modules
        report = executable.report if executable.report_json is not None else Report(executable.target)
        self._nodes, self._of = report.nodes, StepNodes(report, steps)
        self._is_static = not any(symbols_of(dim) for spec in executable.main.inputs for dim in spec.shape)

    def step_time(self, events: Sequence[_Event]) -> StepTime:
        """Summarize one step of all runs."""
        step = events[0].step
        nodes = self._of.nodes(step)
        flops = self._of.flops(nodes) if self._is_static else None  # the report takes every symbol as one size
        seconds, inside = statistics.median(event.seconds for event in events), self._summarize_parts(events)
        names = (step.label, self._modules[step.module].kind, step.symbol, self._of.parts(step))
        return StepTime(*names, seconds, events[0].nbytes, flops, inside, nodes)

    def _summarize_parts(self, events: Sequence[_Event]) -> tuple[PartTime, ...]:
        """Summarize the parts of one step of all runs."""
        step, times = events[0].step, list[PartTime]()
        groups = self._of.groups(step)
        for column in zip(*(event.inside for event in events), strict=True):
            part = column[0][0]
            seconds = statistics.median(seconds for _, seconds in column)
            group = groups[part.group] if part.group is not None and len(groups) == part.groups else ()
            node = self._nodes[group[-1]].name if group else ""
            times.append(PartTime(part.label, part.implementation, seconds, part.nbytes, part.flops, node, group))
        return tuple(times)
