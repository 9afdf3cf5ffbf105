"""Scan rule: running sums and products, carried in registers; lanes lie along the scanned axis, or another one."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import Declined, recurrence_of
from kernelyard_native_cpu.schedule.loops import Loops, even_parts
from kernelyard_native_cpu.schedule.plan import Plan, Scan

# Vectors of another axis that are scanned side by side, their totals in registers.
_UNROLL = 4
# Vectors whose totals, and items, a cache of the first level holds: memory is read and written row after row.
_ROW = 128


def scan(loops: Loops) -> Plan | Declined:
    """Plan scans: each total is the one before it combined with an item, as the block says."""
    recurrence = recurrence_of(loops.stage.first)
    if recurrence is None:
        return Declined("the stage is no scan in which each element is the one before it combined with an item")
    found = Scan(recurrence)
    if _lies_along(loops, loops.reduce[0], (1, -1)) and recurrence.is_associative:
        return replace(loops.scalar(), scan=replace(found, lanes=loops.full_lanes))
    across = next((name for name in reversed(loops.spatial) if _lies_along(loops, name, (0, 1))), None)
    if across is None or loops.lanes(across) < 2:
        return replace(loops.scalar(), scan=found)
    vectors = loops.vectors(across)
    plan = replace(loops.scalar(), vector=across, lanes=loops.lanes(across), masked=loops.is_masked(across))
    if vectors <= _UNROLL:
        return replace(plan, unroll=even_parts(vectors, _UNROLL), scan=found)
    return replace(plan, scan=replace(found, row=even_parts(vectors, _ROW)))


def _lies_along(loops: Loops, axis: str, steps: tuple[int, ...]) -> bool:
    return all(access.offset.coefficient(axis) in steps for access in loops.accesses)
