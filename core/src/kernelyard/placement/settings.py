"""PlacementSettings: what holds for every backend that is offered a module."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelyard.placement.policy import Policy, TakeAll
from kernelyard.placement.recorder import Recorder
from kernelyard.target import Target


@dataclass(frozen=True)
class PlacementSettings:
    """Settings of `partition`, beside the module and the backends.

    recorder: records accepted and declined matches and violations. strict: raise on a contract violation, instead of
    going on without it. exclude_patterns: names of patterns that no backend may use. policy: decides over what backends
    accept. bind_constants: put constants into composites;
    False makes them arguments.
    """

    target: Target = field(default_factory=lambda: Target("cpu"))
    recorder: Recorder = field(default_factory=Recorder)
    strict: bool = False
    exclude_patterns: tuple[str, ...] = ()
    policy: Policy = field(default_factory=TakeAll)
    bind_constants: bool = True
