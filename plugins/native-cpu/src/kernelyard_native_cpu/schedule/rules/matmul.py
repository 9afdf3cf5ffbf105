"""Matmul: a tile of the result stays in registers, the operand that every tile reads is packed."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import Buffer, Declined, offset_of, unconditional_loads
from kernelyard_native_cpu.schedule.loops import Loops, is_transposed
from kernelyard_native_cpu.schedule.plan import Panel, Plan, size_of
from kernelyard_native_cpu.schedule.rules.few_rows import with_few_rows
from kernelyard_native_cpu.schedule.tiling import Tiles, dot_products, outer_product, with_tiles

# A panel is packed when at least so many tiles read it, of at least so many rows, so many elements apart.
_LEAST_TILES = 4
_LEAST_ROWS = 32
_LEAST_DISTANCE = 128


def matmul(loops: Loops) -> Plan | Declined:
    """For contractions over one axis."""
    vector = loops.vector
    if loops.in_order or vector is None or not loops.stage.is_contraction or len(loops.reduce) != 1:
        return Declined("the stage is not a contraction over one axis with operand reuse")
    lanes = loops.lanes(vector)
    plan = replace(loops.scalar(), vector=vector, lanes=lanes, masked=loops.is_masked(vector))
    if vector in loops.reduce:
        return _packed_transposed(loops, plan) or with_few_rows(loops, replace(plan, tiles=dot_products(loops, vector)))
    tiles, width = outer_product(loops, vector)
    panel = None if plan.masked else _panel(loops, vector, lanes * width, tiles)
    return with_few_rows(loops, replace(with_tiles(loops, plan, tiles, width), panel=panel))


def _packed_transposed(loops: Loops, plan: Plan) -> Plan | None:
    """Transpose one operand in packing if both run along the reduced axis, for tiles of whole vectors. A dot product
    takes two loads for each FMA of vectors, such a tile less than one for two."""
    (reduced,), first = loops.reduce, loops.stage.first
    for load in unconditional_loads(first.body):
        offset = offset_of(load.buffer, load.indices)
        for axis in loops.spatial:
            if not is_transposed(offset, axis, reduced) or not _is_stored_along(loops, axis):
                continue
            tiles, width = outer_product(loops, axis)
            lanes, extent, depth = loops.full_lanes, loops.extents[axis], loops.extents[reduced]
            if not isinstance(extent, int) or not isinstance(depth, int) or min(extent, depth) < lanes:
                continue
            if len(tiles) != 1 or size_of(loops.extents[tiles[0][0]]) < _LEAST_TILES * tiles[0][1]:
                continue
            if offset.coefficient(tiles[0][0]) == 0:
                buffer = Buffer(f"panel of {first.name}", (depth, lanes * width), load.dtype, "local")
                found = replace(plan, vector=axis, lanes=lanes, tiles=tiles, unroll=width)
                return replace(found, panel=Panel(load, buffer, is_transposed=True))
    return None


def _is_stored_along(loops: Loops, axis: str) -> bool:
    return all(access.offset.coefficient(axis) == 1 for access in loops.accesses if access.is_store)


def _panel(loops: Loops, vector: str, width: int, tiles: Tiles) -> Panel | None:
    """Return the operand that every tile reads again, row by row, where its rows are far apart in memory."""
    if len(tiles) != 1:
        return None
    (tile, height), (reduced,) = tiles[0], loops.reduce
    if size_of(loops.extents[tile]) < _LEAST_TILES * height or size_of(loops.extents[reduced]) < _LEAST_ROWS:
        return None
    first = loops.stage.first
    for load in unconditional_loads(first.body):
        offset = offset_of(load.buffer, load.indices)
        far = offset.coefficient(reduced)
        is_far = far is not None and (not isinstance(far, int) or far >= _LEAST_DISTANCE)
        if is_far and offset.coefficient(vector) == 1 and offset.coefficient(tile) == 0:
            return Panel(load, Buffer(f"panel of {first.name}", (loops.extents[reduced], width), load.dtype, "local"))
    return None
