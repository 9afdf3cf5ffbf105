"""tune: compile candidates, run them in turns, and decide."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from kernelyard.cli.progress import Progress
from kernelyard.driver.measured_placement import TuneRequest
from kernelyard.driver.placement_cache import iterate_remembered, recall, remember
from kernelyard.errors import KernelyardError, PerformanceWarning
from kernelyard.runtime.abi.threads import default_threads
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.placement_decision import PlacementDecision, Timing
from kernelyard_tune.budget import Budget
from kernelyard_tune.candidates import DEFAULT, likely_first, nearest_first, whole_candidates
from kernelyard_tune.errors import TuneError
from kernelyard_tune.feeds import list_measured_sizes, make_feeds, text_of_sizes
from kernelyard_tune.fewest import fewest
from kernelyard_tune.race import Race
from kernelyard_tune.regions import measure_steps, region_candidates

Feeds: TypeAlias = Mapping[str, np.ndarray]

PROFILING = 0.2  # the part of the budget that may go into times of regions; they are left out where less is left
CALLS_OF_PROFILE, MOST_PROFILED = 6, 10  # a profile of n calls takes as long as 6 n calls; n is at most 10


def tune(request: TuneRequest) -> PlacementDecision:
    """Return the fastest placement of a model on this machine: as it is remembered, else measured end to end.

    Ctrl-C ends the measuring, and the best that is known by then is returned.
    Raises: TuneError where the model does not run with these feeds, and what compiling its default placement raises.
    """
    facts = facts_of_run(request)
    known = recall(facts, request.tuning.remote) if request.tuning.remember else None
    if known is not None:
        return known
    found = measure_candidates(request, whole_candidates(request.session))
    if request.tuning.remember and found.is_complete:
        remember([found.decision], request.tuning.remote)
    return found.decision


class Found(NamedTuple):
    """Hold a measured decision. is_complete: False where Ctrl-C ended the measuring."""

    decision: PlacementDecision
    is_complete: bool


def measure_candidates(request: TuneRequest, candidates: Sequence[PlacementDecision], *, mixes: bool = True) -> Found:
    """Measure candidates, the default first. mixes: add what mixes the quick parts of them. Raises: as `tune`."""
    with Progress("measuring placements") as progress:
        tuner = _Tuner(request, facts_of_run(request), Budget(request.tuning.seconds), progress.step)
        return Found(tuner.run(candidates, mixes), not tuner.is_interrupted)


def facts_of_run(request: TuneRequest) -> dict[str, str]:
    """Return what a decision is remembered by: what the compile says, and what is measured with."""
    tuning = request.tuning
    threads, sizes = tuning.threads or default_threads(), text_of_sizes(request.module, tuning)
    return {**request.facts, "threads": str(threads), "sizes": sizes, "effort": f"{tuning.seconds:g} s"}


class _Run(NamedTuple):
    """Hold sizes of a model's symbols, inputs of these sizes, and about the seconds of a call with them."""

    sizes: Mapping[str, int]
    feeds: Feeds
    seconds: float


class _Candidate(NamedTuple):
    """Hold a compiled candidate. call: runs it until its results are there, on a machine of its own."""

    decision: PlacementDecision
    executable: Executable
    call: Callable[[Feeds], object]


class _Tuner:
    def __init__(
        self, request: TuneRequest, facts: Mapping[str, str], budget: Budget, step: Callable[[str], None]
    ) -> None:
        self.request, self.facts, self.budget, self.step = request, facts, budget, step
        self.is_interrupted = False
        self.threads = request.tuning.threads or default_threads()
        self.compiled: dict[str, _Candidate] = {}
        self.runs: list[_Run] = []
        self.names: list[str] = []
        self.untried: list[str] = []

    def run(self, candidates: Sequence[PlacementDecision], mixes: bool) -> PlacementDecision:
        default, *others = candidates
        self.names = [each.name for each in candidates]
        with _without_warnings():
            self.add(default)
            self.runs = [self._run_at(sizes) for sizes in list_measured_sizes(self.request.module, self.request.tuning)]
            self.budget.calls = [run.seconds for run in self.runs]
            self._try_all(likely_first(self._nearest_first(others), iterate_remembered(), self.facts))
            with self.stop_on_interrupt():
                if mixes and not self.is_interrupted:
                    self._mix()
            self.compiled = dict(sorted(self.compiled.items(), key=lambda each: self._rank(each[0])))
            races = [self._race(run, len(self.runs) - number) for number, run in enumerate(self.runs)]
        if len(races) == 1:
            return self.decision(races[0], races[0].winner().name)
        return self._by_size([run.sizes for run in self.runs], races)

    def _nearest_first(self, candidates: Sequence[PlacementDecision]) -> list[PlacementDecision]:
        generator = self.request.session.generator
        coverage = self.compiled[DEFAULT].executable.report.coverage
        return nearest_first(candidates, coverage, "" if generator is None else generator.name)

    def _rank(self, name: str) -> int:
        """Return the place of a candidate from simple to complex; mixtures are behind the whole ones."""
        return self.names.index(name) if name in self.names else len(self.names)

    def _run_at(self, sizes: Mapping[str, int]) -> _Run:
        """Return how a model is run at sizes. Raises: TuneError where it does not run."""
        default = self.compiled[DEFAULT]
        feeds = make_feeds(default.executable, self.request.tuning.feeds, sizes)
        return _Run(sizes, feeds, _seconds(default.call, feeds))

    def _race(self, run: _Run, left: int) -> Race:
        """Run all candidates in turns. left: how many races share the time that is left, this one among them."""
        race = Race({name: partial(each.call, run.feeds) for name, each in self.compiled.items()}, self.clock)
        if not self.is_interrupted:
            with self.stop_on_interrupt():
                race.run(time.monotonic() + self.budget.left / left, self.step)
        return race

    def _by_size(self, sizes: Sequence[Mapping[str, int]], races: Sequence[Race]) -> PlacementDecision:
        """Return the fewest placements that are the fastest, each at some of the sizes."""
        chosen = fewest([[racer.name for racer in race.winners()] for race in races])
        decisions = [
            replace(self.decision(race, name), facts={}, untried=(), sizes=each)
            for each, race, name in zip(sizes, races, chosen, strict=True)
        ]
        untried = tuple(dict.fromkeys(self.untried))
        most = max(decisions, key=lambda each: chosen.count(each.name))
        return replace(most, facts=self.facts, untried=untried, sizes={}, by_size=tuple(decisions))

    @contextmanager
    def stop_on_interrupt(self) -> Iterator[None]:
        """Go on after the block where Ctrl-C ends it."""
        try:
            yield
        except KeyboardInterrupt:
            self.is_interrupted = True

    def add(self, decision: PlacementDecision) -> None:
        """Compile a candidate, and call it once: libraries compile and pack then. Of those that place all alike, the
        simplest is kept.
        """
        self.step(f"compiling: {decision.name}")
        with self.budget.compiling():
            executable = self.request.compile_with(decision)
            executable.threads = self.threads
            placed = _list_placed(executable)
            twin = next((name for name, each in self.compiled.items() if _list_placed(each.executable) == placed), None)
            if twin is None or self._rank(decision.name) < self._rank(twin):
                candidate = _Candidate(decision, executable, _caller(executable))
                for run in self.runs:
                    candidate.call(run.feeds)
                self.compiled.pop(twin or "", None)
                self.compiled[decision.name] = candidate

    def _try_all(self, decisions: Sequence[PlacementDecision]) -> None:
        """Add candidates while there is time, until Ctrl-C, and note those that are not tried."""
        tried = 0
        with self.stop_on_interrupt():
            for each in decisions:
                if not self.budget.may_compile(len(self.compiled) + 1):
                    break
                self._try(each)
                tried += 1
        self.untried += [each.name for each in decisions[tried:]]

    def _try(self, decision: PlacementDecision) -> None:
        """Add a candidate, unless it cannot be compiled or run, as where `require` says that it may not be."""
        try:
            self.add(decision)
        except KernelyardError as error:
            self.step(f"{decision.name} is left out: {error.message}")

    def _mix(self) -> None:
        """Add placements that mix what was quick in the whole ones, at each set of sizes."""
        generator, whole = self.request.session.generator, [each.executable for each in self.compiled.values()]
        if generator is None or len(whole) < 2:
            return
        share = PROFILING * self.budget.seconds / (len(whole) * len(self.runs))
        names = [backend.name for backend in self.request.session.backends]
        found: list[PlacementDecision] = []
        for run in self.runs:
            calls = int(min(share / (CALLS_OF_PROFILE * run.seconds), MOST_PROFILED))
            seconds = len(whole) * calls * CALLS_OF_PROFILE * run.seconds
            if calls and self.budget.has_time_for(len(whole), seconds):
                self.step("measuring regions")
                measured = [measure_steps(executable, run.feeds, calls) for executable in whole]
                found += region_candidates(measured, generator.name, names)
            else:
                self.untried.append("region by region")
        self._try_all([replace(each, name=f"by region {number}") for number, each in enumerate(found, 1)])

    @property
    def clock(self) -> Callable[[], float]:
        """Return the clock that times calls: one thread has its own, which other work on the machine does not move."""
        is_serial = self.threads == 1 and self.request.session.target.kind == "cpu"
        return time.thread_time if is_serial else time.perf_counter

    def decision(self, race: Race, name: str) -> PlacementDecision:
        """Return a candidate as the one that is chosen, with the times of all."""
        winner = next(racer for racer in race.racers if racer.name == name)
        timed = [racer for racer in race.racers if racer.seconds and winner.seconds]
        ratios = {racer.name: race.compare_racers(winner, racer).ratio for racer in timed}
        timings = [Timing(each.name, float(np.median(each.seconds)), ratios[each.name]) for each in timed]
        untried = tuple(dict.fromkeys(self.untried))
        timings.sort(key=lambda timing: (timing.name != winner.name, timing.ratio))
        return replace(self.compiled[winner.name].decision, timings=tuple(timings), facts=self.facts, untried=untried)


def _seconds(call: Callable[[Feeds], object], feeds: Feeds) -> float:
    """Return about what a call takes. Raises: TuneError where the model does not run."""
    try:
        call(feeds)
    except KernelyardError as error:
        hint = "give feeds (or --input), or sizes that the model takes"
        raise TuneError(f"the model does not run: {error.message}", found=error.found, hint=hint) from error
    start = time.perf_counter()
    call(feeds)
    return time.perf_counter() - start


def _list_placed(executable: Executable) -> list[tuple[str, str, str]]:
    return [(node.backend, node.pattern, node.function) for node in executable.report.nodes]


def _caller(executable: Executable) -> Callable[[Feeds], object]:
    """Return what calls the main program until its results are there, on a machine of its own."""
    machine = VirtualMachine(executable, contexts=1)
    function = machine.function(executable.main.name)
    return lambda feeds: machine.wait(function.run(feeds))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep candidates quiet: the one that is taken is compiled again, and then warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        yield
