"""Contractions with a symbolic number of rows: versions for few of them.

A tile that has more rows than there are computes some again, which one row would pay many times over.
"""

from __future__ import annotations

from dataclasses import replace

from kernelyard_native_cpu.schedule.loops import Loops, even_parts
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.rules.gemv import matrix_stream
from kernelyard_native_cpu.schedule.tiling import Tiles, tile_cost, transpose_tile, widest_tile

# Two rows and three take this tile, too: their matrix is then read once.
_LOW = 4
_LEAST_OF_LOW = 2


def with_few_rows(loops: Loops, plan: Plan) -> Plan:
    """Return the plan, a lower tile for where that takes less time, and one of a single row."""
    rows = next((name for name, _ in plan.tiles if not isinstance(loops.extents[name], int)), None)
    if rows is None or plan.vector is None or not isinstance(loops.extents[plan.vector], int) or plan.masked:
        return plan
    height = dict(plan.tiles)[rows]
    if height <= _LOW:
        return plan

    def lower(height: int, least: int) -> Plan:
        tiles: Tiles = tuple((name, height if name == rows else size) for name, size in plan.tiles)
        found = replace(plan, tiles=tiles, panel=None, least_rows=least)
        if plan.vector_is_reduced:
            return found
        most = widest_tile(height, loops.machine.vector_registers)
        width = even_parts(loops.vectors(str(plan.vector)), most)
        return replace(found, unroll=width, stream=matrix_stream(loops, str(plan.vector)))

    low, single = lower(_LOW, _LEAST_OF_LOW), lower(1, 0)
    transposed = transpose_tile(loops, plan)
    if transposed is not None:
        return replace(transposed, least_rows=height, for_fewer_rows=(low, single))
    enough = (n for n in range(_LOW + 1, height + 1) if _time(loops, plan, n, height) <= _time(loops, low, n, _LOW))
    least = next(enough, height)
    return replace(plan, least_rows=least, for_fewer_rows=(low, single))


def _time(loops: Loops, plan: Plan, rows: int, height: int) -> float:
    """Of the tiles that cover so many rows."""
    if plan.vector_is_reduced:
        return -(-rows // height) * height
    return tile_cost(rows, loops.vectors(str(plan.vector)), height, plan.unroll)
