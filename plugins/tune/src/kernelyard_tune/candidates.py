"""Whole placements to measure: today's default, each backend first, and generated kernels alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernelyard.driver.session.session import CompileSession
from kernelyard.placement.policy import LeastCost
from kernelyard.runtime.placement_decision import LEAST_COST, TAKE_ALL, PlacementDecision
from kernelyard_tune.race import SAME

DEFAULT = "default"
OF_MACHINE = ("target", "processor", "instructions", "threads")  # facts that earlier decisions have to share


def whole_candidates(session: CompileSession) -> list[PlacementDecision]:
    """Return the candidates, the simplest first: inside the noise it wins, and the default is the simplest of all.

    What a backend leaves, generated kernels run.
    """
    names = tuple(backend.name for backend in session.backends)
    policy = LEAST_COST if isinstance(session.policy, LeastCost) else TAKE_ALL
    found = [PlacementDecision(DEFAULT, names, policy)]
    if session.generator is not None:
        found.append(PlacementDecision(f"{session.generator.name} alone", (), TAKE_ALL))
    found += [PlacementDecision(f"{name} first", (name,), TAKE_ALL) for name in names]
    return found


def select_share(
    candidates: Sequence[PlacementDecision], share: tuple[int, int] = (0, 1), names: Sequence[str] | None = None
) -> list[PlacementDecision]:
    """Return one worker's share of candidates, the default with each; those of the names instead, where given.

    Example:
        >>> made = [PlacementDecision(name, ()) for name in (DEFAULT, "a", "b", "c")]
        >>> [each.name for each in shared(made, (1, 2))], [each.name for each in shared(made, names=["c"])]
        (['default', 'b'], ['default', 'c'])
    """
    default, *others = candidates
    first, count = share
    return [default, *(others[first::count] if names is None else (each for each in others if each.name in names))]


def nearest_first(
    candidates: Sequence[PlacementDecision], coverage: Mapping[str, Mapping[str, float]], generator: str
) -> list[PlacementDecision]:
    """Sort candidates by the share of the default's arithmetic that their first backend, or the generator, runs there.

    coverage: `Report.coverage` of the default, whose costs expect these to be the fastest.

    Example:
        >>> made = [PlacementDecision("generated alone", ()), PlacementDecision("a first", ("a",))]
        >>> [each.name for each in nearest_first(made, {"a": {"flops_fraction": 0.9}}, "native-cpu")]
        ['a first', 'generated alone']
    """
    owners = {each.name: each.backends[0] if each.backends else generator for each in candidates}
    return sorted(candidates, key=lambda each: -coverage.get(owners[each.name], {}).get("flops_fraction", 0.0))


def likely_first(
    candidates: Sequence[PlacementDecision], earlier: Iterable[PlacementDecision], facts: Mapping[str, str]
) -> list[PlacementDecision]:
    """Sort candidates by how often they were as quick as what was chosen, in earlier decisions on this machine.

    facts: what holds for this measurement. Without earlier decisions the order stays.

    Example:
        >>> from kernelyard.runtime.placement_decision import Timing
        >>> a, b = PlacementDecision("a", ()), PlacementDecision("b", ())
        >>> known = PlacementDecision("b", (), timings=(Timing("b", 1.0, 1.0), Timing("a", 1.5, 1.5)))
        >>> [each.name for each in likely_first([a, b], [known], {})]
        ['b', 'a']
    """
    timed, won = Counter[str](), Counter[str]()
    for decision in earlier:
        if all(decision.facts.get(name) == facts.get(name) for name in OF_MACHINE):
            for timing in (each for part in decision.by_size or (decision,) for each in part.timings):
                timed[timing.name] += 1
                won[timing.name] += timing.ratio <= SAME
    guess = {each.name: 1 / (position + 2) for position, each in enumerate(candidates)}  # as one earlier decision
    return sorted(candidates, key=lambda each: -(won[each.name] + guess[each.name]) / (timed[each.name] + 1))
