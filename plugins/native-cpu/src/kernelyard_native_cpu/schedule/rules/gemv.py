"""Products of a matrix with one vector or a few: each element of the matrix is read once, and that takes the time."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.tir import IterVar, Load
from kernelyard_native_cpu.schedule.affine import axes_of
from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import Plan, size_of
from kernelyard_native_cpu.schedule.tiling import FEW_ROWS, best_tile, dot_products


def gemv(loops: Loops) -> Plan | None:
    """All rows at once, so that the matrix is read once; as much of each of its rows as registers allow."""
    vector = loops.vector
    if loops.in_order or vector is None or len(loops.reduce) != 1 or loops.is_masked(vector):
        return None
    rows = _rows(loops, vector)
    if rows is None or any(not isinstance(loops.extents[axis.name], int) for axis in rows):
        return None
    counts = [(axis.name, size_of(loops.extents[axis.name])) for axis in rows]
    long = tuple((name, count) for name, count in counts if count > 1)
    if len(long) > 1 or (long and long[0][1] > FEW_ROWS):
        return None
    plan = replace(loops.scalar(), vector=vector, lanes=loops.lanes(vector))
    if vector in loops.reduce:
        return replace(plan, tiles=dot_products(loops, vector)) if loops.stage.is_contraction else None
    height = long[0][1] if long else 1
    _, width = best_tile(height, loops.vectors(vector), loops.machine.vector_registers)
    return replace(plan, tiles=long, unroll=width)


def _rows(loops: Loops, vector: str) -> list[IterVar] | None:
    """The axes along which the matrix is used again: those of the vectors; None where the stage is no such product."""
    stage, first = loops.stage, loops.stage.first
    if first.reducer != "sum":
        return None
    reduced = {axis.name for axis in stage.reduce if axis.extent != 1}
    operands = [load for load in first.loads if axes_of(load) >= reduced]
    candidates = [load for load in operands if vector in axes_of(load) and _is_read_once(load)]
    matrix = max(candidates, key=lambda load: size_of(load.buffer.numel), default=None)
    if matrix is None:
        return None
    columns = axes_of(matrix) - reduced
    if not any(columns - axes_of(load) for load in operands):
        return None
    return [axis for axis in stage.spatial if axis.name not in axes_of(matrix) and axis.extent != 1]


def _is_read_once(load: Load) -> bool:
    """True when different points of its axes read different elements."""
    found: set[str] = set()
    for index in load.indices:
        axes = axes_of(index)
        if len(axes) > 1 or axes & found:
            return False
        found |= axes
    return bool(found)
