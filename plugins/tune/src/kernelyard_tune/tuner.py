"""tune: compile candidates, run them in turns, and decide."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kernelyard.driver.measured_placement import TuneRequest
from kernelyard.driver.placement_memory import recall, remember
from kernelyard.driver.progress import Progress
from kernelyard.errors import KernelyardError, PerformanceWarning
from kernelyard.runtime.abi.threads import default_threads
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.placement_decision import PlacementDecision, Timing
from kernelyard_tune.candidates import whole_candidates
from kernelyard_tune.errors import TuneError
from kernelyard_tune.feeds import made_feeds, text_of_sizes
from kernelyard_tune.race import Race
from kernelyard_tune.regions import measure_steps, region_candidates

PROFILING = 0.2  # the part of the budget that may go into times of regions; they are left out where less is left
CALLS_OF_PROFILE, MOST_PROFILED = 6, 10  # calls that it takes to time the steps of one; and how many of these at most


def tune(request: TuneRequest) -> PlacementDecision:
    """Return the quickest placement of a model on this machine: as it is remembered, else measured end to end.

    Ctrl-C ends the measuring, and the best that is known by then is returned.
    Raises: TuneError where the model does not run with these feeds, and what compiling its default placement raises.
    """
    facts = facts_of_run(request)
    known = recall(facts, request.tuning.remote) if request.tuning.remember else None
    if known is not None:
        return known
    found = measured(request, whole_candidates(request.session))
    if request.tuning.remember and found.is_complete:
        remember([found.decision], request.tuning.remote)
    return found.decision


class Found(NamedTuple):
    """A decision that was measured. is_complete: False where Ctrl-C ended the measuring."""

    decision: PlacementDecision
    is_complete: bool


def measured(request: TuneRequest, candidates: Sequence[PlacementDecision], *, mixes: bool = True) -> Found:
    """Measure candidates, the default first. mixes: add what mixes the quick parts of them. Raises: as `tune`."""
    with Progress("measuring placements") as progress:
        deadline = time.monotonic() + request.tuning.seconds
        tuner = _Tuner(request, facts_of_run(request), deadline, progress.step)
        return Found(tuner.run(candidates, mixes), not tuner.is_interrupted)


def facts_of_run(request: TuneRequest) -> dict[str, str]:
    """Return what a decision is remembered by: what the compile says, and what is measured with."""
    tuning = request.tuning
    threads, sizes = tuning.threads or default_threads(), text_of_sizes(request.module, tuning)
    return {**request.facts, "threads": str(threads), "sizes": sizes, "effort": f"{tuning.seconds:g} s"}


class _Tuner:
    def __init__(
        self, request: TuneRequest, facts: Mapping[str, str], deadline: float, step: Callable[[str], None]
    ) -> None:
        self.request, self.facts, self.deadline, self.step = request, facts, deadline, step
        self.is_interrupted = False
        self.threads = request.tuning.threads or default_threads()
        self.compiled: dict[str, tuple[PlacementDecision, Executable]] = {}

    def run(self, candidates: Sequence[PlacementDecision], mixes: bool) -> PlacementDecision:
        default, *others = candidates
        with _without_warnings():
            self.add(default)
            feeds = made_feeds(self.compiled[default.name][1], self.request.tuning)
            seconds = _seconds(self.compiled[default.name][1], feeds)
            with self.ended_by_interrupt():
                for each in others:  # all of them, whatever it takes: the promise is made of them
                    self._try(each)
                if mixes:
                    self._mix(feeds, seconds)
            race = Race({name: _call(executable, feeds) for name, (_, executable) in self.compiled.items()}, self.clock)
            with self.ended_by_interrupt():
                race.run(self.deadline, self.step)
        return self.decision(race)

    @contextmanager
    def ended_by_interrupt(self) -> Iterator[None]:
        """Go on after the block where Ctrl-C ends it."""
        try:
            yield
        except KeyboardInterrupt:
            self.is_interrupted = True

    def add(self, decision: PlacementDecision) -> None:
        """Compile a candidate; one that places all as another does is not kept."""
        self.step(f"compiling: {decision.name}")
        executable = self.request.compile_with(decision)
        executable.threads = self.threads
        placed = [_placed(each) for _, each in self.compiled.values()]
        if _placed(executable) not in placed:
            self.compiled[decision.name] = decision, executable

    def _try(self, decision: PlacementDecision) -> None:
        """Add a candidate, unless it cannot be compiled, as where `require` says that it may not be."""
        try:
            self.add(decision)
        except KernelyardError as error:
            self.step(f"{decision.name} is left out: {error.message}")

    def _mix(self, feeds: Mapping[str, np.ndarray], seconds: float) -> None:
        """Add placements that mix what was quick in the whole ones. seconds: about what a call takes."""
        session = self.request.session
        if session.generator is None or len(self.compiled) < 2 or self._is_late():
            return
        share = PROFILING * self.request.tuning.seconds / len(self.compiled)
        calls = int(min(share / (CALLS_OF_PROFILE * seconds), MOST_PROFILED))
        if not calls:
            return
        self.step("measuring regions")
        measured = [measure_steps(executable, feeds, calls) for _, executable in self.compiled.values()]
        names = [backend.name for backend in session.backends]
        for each in region_candidates(measured, session.generator.name, names):
            if not self._is_late():
                self._try(each)

    def _is_late(self) -> bool:
        return time.monotonic() > self.deadline - PROFILING * self.request.tuning.seconds

    @property
    def clock(self) -> Callable[[], float]:
        """Return the clock that times calls: one thread has its own, which other work on the machine does not move."""
        is_serial = self.threads == 1 and self.request.session.target.kind == "cpu"
        return time.thread_time if is_serial else time.perf_counter

    def decision(self, race: Race) -> PlacementDecision:
        """Return the winner, with the times of all."""
        winner = race.winner()
        timed = [racer for racer in race.racers if racer.seconds and winner.seconds]
        ratios = {racer.name: race.compared(winner, racer).ratio for racer in timed}
        timings = [Timing(each.name, float(np.median(each.seconds)), ratios[each.name]) for each in timed]
        timings.sort(key=lambda timing: (timing.name != winner.name, timing.ratio))
        return replace(self.compiled[winner.name][0], timings=tuple(timings), facts=self.facts)


def _seconds(executable: Executable, feeds: Mapping[str, np.ndarray]) -> float:
    """Return about what a call takes. Raises: TuneError where the model does not run."""
    call = _call(executable, feeds)
    try:
        call()
    except KernelyardError as error:
        hint = "give feeds (or --input), or sizes that the model takes"
        raise TuneError(f"the model does not run: {error.message}", found=error.found, hint=hint) from error
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _placed(executable: Executable) -> list[tuple[str, str, str]]:
    return [(node.backend, node.pattern, node.function) for node in executable.report.nodes]


def _call(executable: Executable, feeds: Mapping[str, np.ndarray]) -> Callable[[], object]:
    """Return a call of the main program until its results are there, on a machine of its own."""
    machine = VirtualMachine(executable, contexts=1)
    function = machine.function(executable.main.name)
    return lambda: machine.wait(function.run(feeds))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep candidates quiet: the one that is taken is compiled again, and then warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        yield
