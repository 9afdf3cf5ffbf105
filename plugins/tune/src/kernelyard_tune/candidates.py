"""Whole placements to measure: today's default, each backend first, and generated kernels alone."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.driver.session import CompileSession
from kernelyard.placement.policy import LeastCost
from kernelyard.runtime.placement_decision import LEAST_COST, TAKE_ALL, PlacementDecision

DEFAULT = "default"


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


def shared(
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
