"""Tune models on the workers of a pool.

With a worker or less for each model, a worker measures all candidates of a model. With more, its candidates are shared
out, each share beside the default, and what wins its share is compared in the end, on one worker: no two candidates are
compared by times of different machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from kernelyard.driver.measured_placement import TuneRequest
from kernelyard.driver.placement_cache import recall, remember
from kernelyard.errors import KernelyardError
from kernelyard.runtime.placement_decision import PlacementDecision, Timing
from kernelyard_tune.candidates import DEFAULT, whole_candidates
from kernelyard_tune.errors import MeasuringError, PoolError, TuneError
from kernelyard_tune.measure import Machine, this_machine
from kernelyard_tune.pools import Pool
from kernelyard_tune.tuner import facts_of_run
from kernelyard_tune.work import Work, digest_of_work, read_answer

TRIES = 3  # of a measurement whose worker dies
MOST_MODELS = 64  # at once


@dataclass
class Tuned:
    """Hold the outcome of tuning on a pool.

    decisions, failures: by the model's name. left_out: why workers were not used, by name. retried: how often a
    measurement was made anew, as its worker had died.
    """

    decisions: dict[str, PlacementDecision] = field(default_factory=dict)
    failures: dict[str, TuneError] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    retried: int = 0


def tune_on(
    pool: Pool,
    models: Mapping[str, tuple[TuneRequest, Work]],
    step: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Return the fastest placement of each model on the most frequent kind of machine in a pool; it is remembered.

    step: called with a line of progress. Raises: PoolError for a pool without workers.
    """
    return _Spread(pool, len(models), step).run(models)


class _Spread:
    def __init__(self, pool: Pool, models: int, step: Callable[[str], None]) -> None:
        self.pool, self.step, self.done = pool, step, Tuned()
        self.workers, self.machine = self._of_one_kind(pool.machines())
        slots = sum(machine.slots for machine in self.workers.values())
        self.shares = max(slots // models, 1)
        step(f"{slots} workers")

    def _of_one_kind(self, machines: Mapping[str, Machine]) -> tuple[dict[str, Machine], Machine]:
        """Return the workers of the most frequent kind, and note the others."""
        if not machines:
            raise PoolError("the pool has no workers")
        slots = Counter[str]()
        for machine in machines.values():
            slots[repr(machine.kind)] += machine.slots
        kind = max(slots, key=lambda each: slots[each])
        chosen = next(machine for machine in machines.values() if repr(machine.kind) == kind)
        for name, machine in machines.items():
            if difference := chosen.differences(machine):
                self.done.left_out[name] = f"it is of another kind than most: {difference}"
        return {name: each for name, each in machines.items() if name not in self.done.left_out}, chosen

    def run(self, models: Mapping[str, tuple[TuneRequest, Work]]) -> Tuned:
        with ThreadPoolExecutor(min(len(models), MOST_MODELS)) as threads:
            futures = {threads.submit(self._tune, name, *each): name for name, each in models.items()}
            for future in as_completed(futures):
                name = futures[future]
                try:
                    self.done.decisions[name] = future.result()
                    self.step(f"{name}: {self.done.decisions[name].summary}")
                except TuneError as error:  # the other models' decisions are as good without this one's
                    self.done.failures[name] = error
        # In the order of the models, not of the workers that ended first, so that files of decisions compare.
        self.done.decisions = {name: self.done.decisions[name] for name in models if name in self.done.decisions}
        return self.done

    def _tune(self, name: str, request: TuneRequest, work: Work) -> PlacementDecision:
        tuning = request.tuning
        facts = self._facts(request) if tuning.remember else None
        known = recall(facts, tuning.remote) if facts is not None else None
        if known is not None:
            return known
        # What wins a share does so at one size: at several, one worker compares all.
        shares = self.shares if len(tuning.sets_of_sizes) == 1 else 1
        count = min(shares, len(whole_candidates(request.session)) - 1)
        decision = self._ask(name, [work])[0] if count < 2 else self._by_shares(name, work, count)
        if tuning.remember:
            remember([decision], tuning.remote)
        return decision

    def _by_shares(self, name: str, work: Work, count: int) -> PlacementDecision:
        heats = self._ask(name, [work.part(number, count) for number in range(count)])
        names = tuple(dict.fromkeys([DEFAULT, *(heat.name for heat in heats)]))
        final = self._ask(name, [work.final(names)])[0]
        return with_heats(final, heats)

    def _ask(self, name: str, works: Sequence[Work]) -> list[PlacementDecision]:
        """Have work measured, each piece by one worker, again where that dies. Raises: TuneError."""
        sent = [_Sent(self, f"{name}, part {number + 1}", work) for number, work in enumerate(works)]
        return [each.decision() for each in sent]

    def _facts(self, request: TuneRequest) -> dict[str, str] | None:
        """Return what a decision of this model on the pool's machines is remembered by; None where nobody can say."""
        facts, own = facts_of_run(request), this_machine().kind
        if own["packages"] != self.machine.kind["packages"]:
            return None
        return {**facts, **{name: self.machine.kind[name] for name in own if name in facts}}


class _Sent:
    """Work that was sent, and is sent again where its worker dies."""

    def __init__(self, spread: _Spread, what: str, work: Work) -> None:
        self._spread, self._what = spread, what
        self._data = work.to_bytes()
        self._digest = digest_of_work(self._data)
        self._future = self._send()

    def _send(self) -> Future[bytes]:
        return self._spread.pool.submit(self._data, self._digest, list(self._spread.workers))

    def decision(self) -> PlacementDecision:
        """Wait for the answer. Raises: TuneError, MeasuringError after the last try."""
        for tried in range(1, TRIES + 1):
            try:
                answer = self._future.result()
            except CancelledError:
                raise
            except Exception as error:  # of whatever class the engine has for a worker that died
                if tried == TRIES:
                    text = error.message if isinstance(error, KernelyardError) else f"{type(error).__name__}: {error}"
                    raise MeasuringError(f"given up after {TRIES} tries: {text}", where=self._what) from error
                self._spread.done.retried += 1
                self._spread.step(f"{self._what}: again, as its worker died")
                self._future = self._send()
            else:
                return read_answer(answer, self._digest)
        raise AssertionError("the last try returns or raises")


def with_heats(final: PlacementDecision, heats: Sequence[PlacementDecision]) -> PlacementDecision:
    """Return the last decision with the times of candidates that were surely slower than one that came to the end.

    Their ratios are to the chosen one, by way of what won their share.
    """
    ratios = {each.name: each.ratio for each in final.timings}
    slower: dict[str, Timing] = {}
    for heat in heats:
        for each in heat.timings:
            if each.name not in ratios and heat.name in ratios:
                slower.setdefault(each.name, replace(each, ratio=each.ratio * ratios[heat.name]))
    rest = sorted([*final.timings[1:], *slower.values()], key=lambda timing: timing.ratio)
    timed = {each.name for each in (*final.timings, *rest)}
    untried = dict.fromkeys(name for each in (*heats, final) for name in each.untried if name not in timed)
    return replace(final, timings=(*final.timings[:1], *rest), untried=tuple(untried))
