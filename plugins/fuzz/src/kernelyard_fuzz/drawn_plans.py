"""Oracle of memory plans: drawn buffers that live together share no bytes, and an arena is as large as it has to be.

A plan that wastes memory gives no wrong result, and graphs have too few buffers for one that is hard to find.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.runtime.abi.memory import align
from kernelyard.runtime.program.memory_plan import Lifetime, MemoryPlan, least_nbytes, plan_memory
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.errors import FoundError

MOST_BUFFERS = 24
SIZES = (0, 1, 63, 64, 65, 128, 1000, 4096)  # bytes: around those of alignment


def check_plans(chooser: Chooser) -> None:
    """Plan the memory of drawn buffers. Raises: FoundError."""
    lifetimes: list[Lifetime] = []
    for _ in range(chooser.between(1, MOST_BUFFERS)):
        first = chooser.below(MOST_BUFFERS)
        lifetimes.append(Lifetime(chooser.pick(SIZES), first, first + chooser.pick((0, 1, 1, 2, 5, MOST_BUFFERS))))
    plan = plan_memory(lifetimes)
    objection = _objection(plan, lifetimes)
    if objection:
        raise FoundError("drawn plan", "values", f"{objection}: {plan} of {lifetimes}")


def _objection(plan: MemoryPlan, lifetimes: Sequence[Lifetime]) -> str:
    """Return what is wrong with a plan; empty for a right one."""
    times = range(1 + max(each.last for each in lifetimes))
    peak = max(sum(align(each.nbytes) for each in lifetimes if each.first <= time <= each.last) for time in times)
    if least_nbytes(lifetimes) != peak:
        return f"the least memory is {peak} bytes, not {least_nbytes(lifetimes)}"
    spans = [(offset, offset + align(each.nbytes)) for offset, each in zip(plan.offsets, lifetimes, strict=True)]
    if plan.nbytes != max(end for _, end in spans) or any(start < 0 for start, _ in spans):
        return "the arena ends where its last buffer ends"
    for at, (one, own) in enumerate(zip(spans, lifetimes, strict=True)):
        for other, lifetime in zip(spans[:at], lifetimes, strict=False):
            if own.overlaps(lifetime) and max(one[0], other[0]) < min(one[1], other[1]):
                return "buffers that live together share bytes"
    return ""
