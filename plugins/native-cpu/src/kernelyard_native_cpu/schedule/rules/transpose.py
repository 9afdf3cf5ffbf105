"""Elementwise kernels that read along one axis and write along another: tiles are transposed in registers."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import Declined
from kernelyard_native_cpu.schedule.loops import Loops, is_transposed
from kernelyard_native_cpu.schedule.plan import Plan

_LEAST_LANES = 4


def transpose(loops: Loops) -> Plan | Declined:
    """Return a square tile, as many rows as lanes, where a load is contiguous along another axis."""
    vector = loops.vector
    if loops.in_order or loops.stage.reduce or vector is None or loops.is_masked(vector):
        return Declined("the stage is not elementwise, or has no axis of whole vectors")
    lanes = loops.lanes(vector)
    axis = _find_transposed_axis(loops, vector, lanes)
    if axis is None:
        return Declined("no load is contiguous along another axis that is long enough")
    return replace(loops.scalar(), vector=vector, lanes=lanes, tiles=((axis, lanes),), transposed_axis=axis)


def _find_transposed_axis(loops: Loops, vector: str, lanes: int) -> str | None:
    if lanes < _LEAST_LANES or not isinstance(loops.extents[vector], int):
        return None
    loads = [access.offset for access in loops.accesses if not access.is_store]
    sized = [(name, loops.extents[name]) for name in loops.spatial if name != vector]
    long_enough = [name for name, extent in sized if isinstance(extent, int) and extent >= lanes]
    return next((name for name in long_enough if any(is_transposed(load, vector, name) for load in loads)), None)
