"""Chains of reductions and elementwise blocks over common rows (softmax, norms): one kernel (see `groups.py`)."""

from __future__ import annotations

from kernelyard.plugins.codegen_api import Declined
from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules.elementwise import elementwise
from kernelyard_native_cpu.schedule.rules.reduction import reduction


def general_reduction(loops: Loops) -> Plan | Declined:
    """Plan each stage along the axis inside of the row that costs least; what it hands on is kept for one row only."""
    if not loops.in_rows:
        return Declined("no other stage shares the loop over rows")
    found = reduction(loops)
    return elementwise(loops) if isinstance(found, Declined) else found
