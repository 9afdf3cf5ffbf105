"""Fallback rule: scans, scatters and in-place updates; scalar loops where nothing else is safe."""

from __future__ import annotations

from dataclasses import replace

from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import Plan


def fallback(loops: Loops) -> Plan:
    """Vectorize a contiguous axis that vectors divide; otherwise emit scalar loops."""
    scalar = loops.scalar()
    if not loops.in_order:
        return scalar
    for name in loops.spatial:
        extent, lanes = loops.extents[name], loops.full_lanes
        # No element may be computed twice, or out of order: no step is moved back to end at the extent.
        while lanes > 1 and not (isinstance(extent, int) and extent % lanes == 0):
            lanes //= 2
        if lanes > 1 and all(access.offset.coefficient(name) in (0, 1) for access in loops.accesses):
            return replace(scalar, vector=name, lanes=lanes)
    return scalar
