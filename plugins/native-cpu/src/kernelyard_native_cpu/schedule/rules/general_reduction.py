"""Chains of reductions and maps over common rows (softmax, norms): one kernel, row by row (see `groups.py`)."""

from __future__ import annotations

from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules.elementwise import elementwise
from kernelyard_native_cpu.schedule.rules.reduction import reduction


def general_reduction(loops: Loops) -> Plan | None:
    """Each stage along the axis inside of the row that costs least; what it hands on is kept for one row only."""
    return (reduction(loops) or elementwise(loops)) if loops.in_rows else None
