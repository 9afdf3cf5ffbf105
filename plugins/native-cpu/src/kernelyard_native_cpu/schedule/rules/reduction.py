"""Reductions in which nothing is read twice: sums, extrema, means, poolings."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import Declined
from kernelyard_native_cpu.schedule.loops import Loops, even_parts
from kernelyard_native_cpu.schedule.plan import Plan, size_of

# Independent accumulators: enough to hide the latency of an addition.
_UNROLL = 4


def reduction(loops: Loops) -> Plan | Declined:
    """Vectorize the reduced axis with several accumulators, or another one with a result per lane."""
    vector = loops.vector
    if loops.in_order or not loops.stage.reduce or vector is None:
        return Declined("the stage has no reduction, a loop-carried dependence, or no vectorizable axis")
    return replace(
        loops.scalar(),
        vector=vector,
        lanes=loops.lanes(vector),
        unroll=_unroll(loops, vector),
        masked=loops.is_masked(vector),
    )


def _unroll(loops: Loops, vector: str) -> int:
    if loops.finds_place:
        return 1
    if vector in loops.reduce:
        full = size_of(loops.extents[vector]) // loops.lanes(vector)
        return max(1, min(_UNROLL, full))
    return even_parts(loops.vectors(vector), _UNROLL)
