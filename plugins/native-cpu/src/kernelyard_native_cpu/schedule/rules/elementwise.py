"""Elementwise kernels: every element by itself, whole vectors of neighbours at a time."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import Declined
from kernelyard_native_cpu.schedule.loops import Loops, even_parts
from kernelyard_native_cpu.schedule.plan import Plan

_UNROLL = 2


def elementwise(loops: Loops) -> Plan | Declined:
    """Vectorize the axis along which most loads and stores are contiguous."""
    vector = loops.vector
    if loops.in_order or loops.stage.reduce or vector is None:
        return Declined("the stage has a reduction or a loop-carried dependence, or no vectorizable axis")
    unroll = even_parts(loops.vectors(vector), _UNROLL)
    return replace(
        loops.scalar(),
        vector=vector,
        lanes=loops.lanes(vector),
        unroll=unroll,
        masked=loops.is_masked(vector),
    )
