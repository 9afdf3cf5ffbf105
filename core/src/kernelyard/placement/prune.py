"""Regions that are not worth a call of their own: their operators stay with the rest of the program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelyard.errors import PatternError, describe
from kernelyard.ir import Binding, Call, Function, IRModule, Var
from kernelyard.ir.visitor import reachable_functions
from kernelyard.patterns.composite import COMPOSITE
from kernelyard.patterns.cost import Cost
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.registry import Accept, Answer, Decline, FusionPattern
from kernelyard.placement.borders import Borders, regions_of
from kernelyard.placement.policy import Policy, TakeAll
from kernelyard.placement.recorder import Recorder
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.transform.partition.fuse_ops_by_pattern import CHECK_ERROR, FailedCheck
from kernelyard.transform.partition.region import Region
from kernelyard.transform.pipelines import merge

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RegionAcceptance:
    """Accept or decline matches and regions: by the backend's check first, then by the policy of the compile."""

    backend: Backend
    policy: Policy

    def answer(self, region: Region) -> Answer:
        """Accept or decline a region; a plugin that raises does not get it."""
        return self._decide(_ask(self.backend, region), region)

    def wrap_checks(self, patterns: Sequence[FusionPattern]) -> list[FusionPattern]:
        """Return the patterns with checks that consult the policy, too."""
        return list(patterns) if isinstance(self.policy, TakeAll) else [self._with_policy(each) for each in patterns]

    def _with_policy(self, pattern: FusionPattern) -> FusionPattern:
        def check(match: Match) -> Answer:
            return self._decide(Accept() if pattern.check is None else pattern.check(match), match)

        return replace(pattern, check=check)

    def decide(self, region: Region, cost: Cost | None, border_seconds: float) -> Answer:
        """Decide over an accepted region that takes some seconds more, for the tensors at its borders."""
        if cost is None or cost.seconds is None:
            return Accept(cost)
        return self.policy.decide(self.backend, region, replace(cost, seconds=cost.seconds + border_seconds))

    def _decide(self, answer: Answer, work: Match | Region) -> Answer:
        return self.policy.decide(self.backend, work, answer.cost) if isinstance(answer, Accept) else answer


def merge_regions(
    module: IRModule, acceptance: RegionAcceptance, patterns: Sequence[FusionPattern], recorder: Recorder
) -> IRModule:
    """Return the module with a backend's composites in regions; those of regions that are declined are operators again.

    A region is declined by itself, then for what it takes to reorder the tensors at its borders: where it is gone, its
    neighbours have borders of this kind, too.
    patterns: those that the composites were made from. recorder: has their matches, and records the declined ones.
    """
    by_name = {pattern.name: pattern for pattern in patterns}
    merging = _Merging(acceptance)
    while True:
        merged = merging.merge(module)
        declined = merging.declined or merging.find_declined_for_borders(merged)
        if not declined:
            return merged
        module = release_composites(module, declined, by_name, recorder)


class _Merging:
    """Merges composites; each region is asked for once. declined: the calls of composites of what is no region."""

    def __init__(self, acceptance: RegionAcceptance) -> None:
        self._acceptance = acceptance
        self._name = acceptance.backend.name
        self._answers: dict[tuple[Var, ...], Answer] = {}
        self._members: dict[Var, Sequence[Binding]] = {}
        self.declined: dict[Binding, Decline] = {}

    def merge(self, module: IRModule) -> IRModule:
        """Return the module with regions."""
        self.declined, self._members = {}, {}

        def is_wanted(function: Function, members: Sequence[Binding]) -> bool | None:
            key = tuple(binding.var for binding in members)
            if key not in self._answers:
                self._answers[key] = self._acceptance.answer(Region(self._name, self._name, function, module))
            answer = self._answers[key]
            if isinstance(answer, Decline):
                if answer.divide and sum(isinstance(binding.value, Call) for binding in members) > 1:
                    return None
                self.declined.update(dict.fromkeys(members, answer))
            self._members.update(dict.fromkeys(key, members))
            return isinstance(answer, Accept)

        return merge(self._name, is_wanted)(module)

    def find_declined_for_borders(self, merged: IRModule) -> dict[Binding, Decline]:
        """Return the calls of composites in regions that gain less than the reorders at their borders take."""
        declined: dict[Binding, Decline] = {}
        if isinstance(self._acceptance.policy, TakeAll):
            return declined
        for function in merged.entry_functions().values():
            regions = regions_of(function, merged, self._name)
            borders = Borders(function, regions, self._acceptance.backend)
            for var, region in regions.items():
                members = self._members[borders.results(var)[0]]
                answer = self._answers[tuple(binding.var for binding in members)]
                assert isinstance(answer, Accept), "it is a region"
                decided = self._acceptance.decide(region, answer.cost, borders.seconds(var, region))
                if isinstance(decided, Decline):
                    declined.update(dict.fromkeys(members, decided))
        return declined


def _ask(backend: Backend, region: Region) -> Answer:
    try:
        answer = backend.check_region(region)
        if isinstance(answer, (Accept, Decline)):
            return answer
        raise PatternError("a check must return Accept() or Decline(code, message)", found=repr(answer))
    except Exception as error:  # a vendor's code: whatever it raises declines this region and nothing else
        log.warning("the check of a region by %s failed", backend.name, exc_info=True)
        return FailedCheck(CHECK_ERROR, f"the check of a region by {backend.name} failed: {describe(error)}")


def release_composites(
    module: IRModule, declined: dict[Binding, Decline], patterns: dict[str, FusionPattern], recorder: Recorder
) -> IRModule:
    """Return the module with what was matched in the place of composites.

    declined: the calls of these composites, and why. patterns: by name.
    """
    changed: dict[str, Function] = {}
    for name, function in module.entry_functions().items():
        bindings: list[Binding] = []
        for binding in function.bindings:
            match = recorder.matches.get(binding.var) if binding in declined else None
            if match is None:
                bindings.append(binding)
                continue
            bindings += match.bindings
            pattern = patterns[module[binding.value.op_name].attrs[COMPOSITE]]  # pyright: ignore[reportAttributeAccessIssue]
            recorder.record_release(pattern, match, name, declined[binding])
        changed[name] = Function(function.params, bindings, function.result, function.attrs)
    after = module.with_functions(changed)
    entries = tuple(module.entry_functions())
    return after.without_functions(reachable_functions(module, entries) - reachable_functions(after, entries))
