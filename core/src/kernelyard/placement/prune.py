"""Regions that are not worth a call of their own: their operators stay with the rest of the program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelyard.errors import PatternError, describe
from kernelyard.ir import Binding, Function, IRModule
from kernelyard.ir.visitor import reachable_functions
from kernelyard.patterns.composite import COMPOSITE
from kernelyard.patterns.matcher import Match
from kernelyard.patterns.registry import Accept, Answer, Decline, FusionPattern
from kernelyard.placement.recorder import Recorder
from kernelyard.plugins.backend import Backend
from kernelyard.plugins.code_generator import CodeGenerator
from kernelyard.target import Target
from kernelyard.transform.fuse_ops_by_pattern import CHECK_ERROR, FailedCheck
from kernelyard.transform.pipelines import merge
from kernelyard.transform.run_codegen import Region

log = logging.getLogger(__name__)


# The code of a region that a code generator is quicker with.
GENERATED = "generated"


@dataclass(frozen=True)
class RegionJudge:
    """Judge matches and regions: the backend's check, then the code generator's preference, if there is a choice."""

    backend: Backend
    rival: CodeGenerator | None
    target: Target

    def answer(self, region: Region) -> Answer:
        """Accept or decline a region; a plugin that raises does not get it."""
        answer = _ask(self.backend, region)
        return self._contested(region) if isinstance(answer, Accept) else answer

    def contested(self, patterns: Sequence[FusionPattern]) -> list[FusionPattern]:
        """Return the patterns, whose matches the code generator may claim."""
        return [self._with_claim(pattern) for pattern in patterns] if self._may_bid else list(patterns)

    @property
    def _may_bid(self) -> bool:
        return self.rival is not None and self.backend.yields_to_generator

    def _with_claim(self, pattern: FusionPattern) -> FusionPattern:
        def check(match: Match) -> Answer:
            answer = Accept() if pattern.check is None else pattern.check(match)
            return self._contested(match) if isinstance(answer, Accept) else answer

        return replace(pattern, check=check)

    def _contested(self, work: Match | Region) -> Answer:
        if self.rival is None or not self._may_bid:
            return Accept()
        try:
            reason = self.rival.preference(work, self.target)
        except Exception:  # a vendor's code
            log.warning("%s failed when it was asked for its preference", self.rival.name, exc_info=True)
            return Accept()
        return Accept() if reason is None else Decline(GENERATED, f"{self.rival.name} is quicker: {reason}")


def merge_regions(
    module: IRModule, judge: RegionJudge, patterns: Sequence[FusionPattern], recorder: Recorder
) -> IRModule:
    """Return the module with a backend's composites in regions; those of regions that are declined are operators again.

    patterns: those that the composites were made from. The recorder, which has their matches, is told what is declined.
    """
    declined: dict[Binding, Decline] = {}
    name = judge.backend.name

    def is_wanted(function: Function, members: Sequence[Binding]) -> bool:
        answer = judge.answer(Region(name, name, function, module))
        if isinstance(answer, Decline):
            declined.update(dict.fromkeys(members, answer))
        return isinstance(answer, Accept)

    merged = merge(name, is_wanted)(module)
    return (
        _released(merged, declined, {pattern.name: pattern for pattern in patterns}, recorder) if declined else merged
    )


def _ask(backend: Backend, region: Region) -> Answer:
    try:
        answer = backend.check_region(region)
        if isinstance(answer, (Accept, Decline)):
            return answer
        raise PatternError("a check must return Accept() or Decline(code, message)", found=repr(answer))
    except Exception as error:  # a vendor's code: whatever it raises declines this region and nothing else
        log.warning("the check of a region by %s failed", backend.name, exc_info=True)
        return FailedCheck(CHECK_ERROR, f"the check of a region by {backend.name} failed: {describe(error)}")


def _released(
    module: IRModule, declined: dict[Binding, Decline], patterns: dict[str, FusionPattern], recorder: Recorder
) -> IRModule:
    """Return the module with what was matched in the place of composites."""
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
            recorder.released(pattern, match, name, declined[binding])
        changed[name] = Function(function.params, bindings, function.result, function.attrs)
    after = module.with_functions(changed)
    entries = tuple(module.entry_functions())
    return after.without_functions(reachable_functions(module, entries) - reachable_functions(after, entries))
