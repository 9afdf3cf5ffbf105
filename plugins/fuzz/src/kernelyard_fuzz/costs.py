"""Costs: what a compile made of a graph, in numbers that another version of the compiler should not make larger.

A rewrite or a pattern that is lost makes programs slower, never wrong, so that no result shows it. Held against what
the version before made of the same graph, it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kernelyard.ir import Call, Function, IRModule, Op
from kernelyard.patterns.composite import CODEGEN, COMPOSITE

DECLINED = "declined by "  # begins the stages that count a backend's answers


class Cost(NamedTuple):
    """Count what a module consists of; what comes first weighs most.

    left: operators (or kernels) that no backend took. regions: functions that backends took. composites: matches in
    them. operators: all together.
    """

    left: int
    regions: int = 0
    composites: int = 0
    operators: int = 0


def cost_of(module: IRModule) -> Cost:
    """Return the cost of a module."""
    left = regions = composites = operators = 0
    for function in module.functions.values():
        if isinstance(function, Function):
            calls = [binding.value for binding in function.bindings if isinstance(binding.value, Call)]
            count = sum(isinstance(call.op, Op) for call in calls)
            operators += count
            left += 0 if COMPOSITE in function.attrs or CODEGEN in function.attrs else count
            regions += CODEGEN in function.attrs
            composites += COMPOSITE in function.attrs
    return Cost(left, regions, composites, operators)


def worse(before: Mapping[str, Cost], after: Mapping[str, Cost]) -> str:
    """Return the first stage whose result costs more than before, and by what; empty where none does.

    Of reasons to decline, one that is new counts, too: a check that lets pass what another then refuses.
    """
    for stage, cost in after.items() if before else ():
        known = before.get(stage, Cost(0) if stage.startswith(DECLINED) else cost)
        if cost > known:
            return f"{stage}: {cost} in place of {known}"
    return ""
