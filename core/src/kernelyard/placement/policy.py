"""Policy: who gets the work that a backend accepts. This file is the only place that decides it.

Backends are asked in the order of `order_backends`. What one accepts, the policy of the compile may still decline:

| policy | of | a backend gets |
|---|---|---|
| `TakeAll` | backends that the user names or requires | all that it accepts |
| `LeastCost` | `backends="auto"` | what the code generator does not expect to do in less time |
| `Assigned` | measured placements | the operators that are assigned to it |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kernelyard.ir import Call, Var
from kernelyard.legalize import has_rule
from kernelyard.patterns.cost import Cost
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.registry import Accept, Answer, Decline
from kernelyard.placement.recorder import node_label
from kernelyard.plugins.support.roofline import calls_of
from kernelyard.records import record
from kernelyard.target import Target
from kernelyard.transform.partition.region import Region

if TYPE_CHECKING:
    from kernelyard.plugins.interfaces.backend import Backend
    from kernelyard.plugins.interfaces.code_generator import CodeGenerator

log = logging.getLogger(__name__)

# Codes of what a policy declines: the code generator expects to be faster; nobody knows how fast the backend is; a
# measured placement has it elsewhere.
GENERATED, UNMEASURED, ASSIGNED = "generated", "unmeasured", "assigned"


def order_backends(
    priorities: Mapping[str, int], wanted: Sequence[str] | None = None, with_costs: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return names of backends in the order in which they are offered the model; the first to get an op keeps it.

    The user's list as it stands when there is one. Otherwise those that state their costs come first, so that one of
    unknown speed takes nothing from them; then by priority, highest first, then by name.

    Example:
        >>> order_backends({"cublas": 10, "cutlass": 10, "cudnn": 20})
        ('cudnn', 'cublas', 'cutlass')
        >>> order_backends({"cublas": 10, "stranger": 99}, with_costs=["cublas"])
        ('cublas', 'stranger')
        >>> order_backends({"cublas": 10, "cudnn": 20}, ["cublas", "cudnn", "cublas"])
        ('cublas', 'cudnn')
    """
    if wanted is not None:
        return tuple(dict.fromkeys(wanted))
    return tuple(sorted(priorities, key=lambda name: (name not in with_costs, -priorities[name], name)))


class Policy(Protocol):
    """Decides over what a backend accepts, matches and merged regions alike."""

    def decide(self, backend: Backend, work: Match | Region, cost: Cost | None) -> Answer:
        """Accept or decline work that the backend accepts at this cost."""
        ...

    def decide_epilogue(self, match: Match) -> Decline | None:
        """Decline elementwise operators that follow a generated kernel, or return None to leave them to a backend."""
        ...


@record
class TakeAll:
    """Let backends have all that they accept."""

    def decide(self, backend: Backend, work: Match | Region, cost: Cost | None) -> Answer:
        """See `Policy.decide`."""
        return Accept(cost)

    def decide_epilogue(self, match: Match) -> Decline | None:
        """See `Policy.decide_epilogue`."""
        return None


@record
class LeastCost:
    """Let the code generator keep what it expects to do in less time, and what a backend states no cost for.

    So the default placement gets no slower by an installation: who is of unknown speed displaces nobody.
    """

    generator: CodeGenerator
    target: Target

    def decide(self, backend: Backend, work: Match | Region, cost: Cost | None) -> Answer:
        """See `Policy.decide`."""
        alternative = self._estimate_generated(work)
        if alternative is None or alternative.seconds is None:
            return Accept(cost)
        name = self.generator.name
        if cost is None:
            hint = f'backends=["{backend.name}"] or tune= would use it'
            return Decline(UNMEASURED, f"{backend.name} states no cost, and {name} has a kernel; {hint}")
        if not alternative.is_sure or (cost.seconds is not None and cost.seconds <= alternative.seconds):
            return Accept(cost)
        return Decline(
            GENERATED,
            f"{name} expects to be faster: {cost.reason or alternative.reason or _compare_costs(cost, alternative)}",
        )

    def decide_epilogue(self, match: Match) -> Decline | None:
        """See `Policy.decide_epilogue`."""
        alternative = self._estimate_generated(match)
        if alternative is None or alternative.seconds is None or not alternative.is_sure:
            return None
        return Decline(GENERATED, f"it continues a kernel of {self.generator.name}, which computes it in registers")

    def _estimate_generated(self, work: Match | Region) -> Cost | None:
        """Return what the work costs as generated kernels; None where there are none, or nobody says."""
        if not all(has_rule(call.op_name) for call in calls_of(work)):
            return None
        try:
            return self.generator.cost(work, self.target)
        except Exception:  # a vendor's code
            log.warning("%s failed when it was asked for a cost", self.generator.name, exc_info=True)
            return None


def _compare_costs(cost: Cost, alternative: Cost) -> str:
    mine, its = (each.seconds or 0.0 for each in (alternative, cost))
    return f"{mine * 1e6:.3g} us, not {its * 1e6:.3g}"


@record
class Assigned:
    """Let each backend have the operators that a measured placement assigns to it, by `node_key`."""

    backend_of: Mapping[str, str]

    def decide(self, backend: Backend, work: Match | Region, cost: Cost | None) -> Answer:
        """See `Policy.decide`."""
        if isinstance(work, Region):  # it consists of matches that were decided over
            return Accept(cost)
        calls = zip(work.call_bindings, work.calls, strict=True)
        owners = {self.backend_of.get(node_key(binding.var, call)) for binding, call in calls}
        if owners == {backend.name}:
            return Accept(cost)
        return Decline(ASSIGNED, "the measured placement has it elsewhere")

    def decide_epilogue(self, match: Match) -> Decline | None:
        """See `Policy.decide_epilogue`."""
        return None


def node_key(var: Var, call: Call) -> str:
    """Return a name for an operator of a model that is the same in every compile of that model."""
    return f"{node_label(var)} {call.op_name}"
