"""Matmul: a tile of the result stays in registers, the operand that every tile reads is packed."""

from __future__ import annotations

from dataclasses import replace

from kernelyard import dims
from kernelyard.dims import Shape
from kernelyard.plugins.codegen_api import Buffer, Declined, Load, offset_of, unconditional_loads
from kernelyard_native_cpu.schedule.loops import Loops, is_transposed
from kernelyard_native_cpu.schedule.plan import KBlocks, Panel, Plan, size_of
from kernelyard_native_cpu.schedule.rules.few_rows import with_few_rows
from kernelyard_native_cpu.schedule.tiling import Tiles, dot_products, outer_product, with_tiles

# A panel is packed when at least so many tiles read it, of at least so many rows, so many elements apart.
_LEAST_TILES = 4
_LEAST_ROWS = 32
_LEAST_DISTANCE = 128
# Steps of the reduced axis in a part of a panel that is kept.
_BLOCK_DEPTH = 512


def matmul(loops: Loops) -> Plan | Declined:
    """Plan contractions over one axis."""
    vector = loops.vector
    if loops.in_order or vector is None or not loops.stage.is_contraction or len(loops.reduce) != 1:
        return Declined("the stage is not a contraction over one axis with operand reuse")
    lanes = loops.lanes(vector)
    plan = replace(loops.scalar(), vector=vector, lanes=lanes, masked=loops.is_masked(vector))
    if vector in loops.reduce:
        dots = with_few_rows(loops, replace(plan, tiles=dot_products(loops, vector)))
        packed = _pack_transposed(loops, plan)
        return dots if packed is None else _for_many_rows(packed, dots)
    tiles, width = outer_product(loops, vector)
    panel = None if plan.masked else _panel(loops, vector, lanes * width, tiles)
    return with_few_rows(loops, _in_k_blocks(loops, replace(with_tiles(loops, plan, tiles, width), panel=panel)))


def _pack_transposed(loops: Loops, plan: Plan) -> Plan | None:
    """Transpose one operand in packing if both run along the reduced axis, for tiles of whole vectors. A dot product
    takes two loads for each FMA of vectors, such a tile less than one for two."""
    (reduced,) = loops.reduce
    for load in unconditional_loads(loops.stage.first.body):
        offset = offset_of(load.buffer, load.indices)
        for axis in loops.spatial:
            if not is_transposed(offset, axis, reduced) or not _is_stored_along(loops, axis):
                continue
            tiles, width = outer_product(loops, axis)
            lanes, extent, depth = loops.full_lanes, loops.extents[axis], loops.extents[reduced]
            if not isinstance(depth, int) or depth < lanes:
                continue
            if extent < lanes if isinstance(extent, int) else not loops.in_rows:
                continue
            if len(tiles) != 1 or not _has_many_tiles(loops, *tiles[0]):
                continue
            if offset.coefficient(tiles[0][0]) == 0:
                found = replace(plan, vector=axis, lanes=lanes, tiles=tiles, unroll=width)
                return replace(found, panel=_pack_operand(loops, load, axis, lanes * width, is_transposed=True))
    return None


def _for_many_rows(packed: Plan, dots: Plan) -> Plan:
    """Return the plan of packed tiles, with dot products for where symbolic sizes are less than those of one tile."""
    ((rows, height),) = packed.tiles
    least_rows = 0 if isinstance(packed.extents[rows], int) else height
    if not least_rows and isinstance(packed.extents[str(packed.vector)], int):
        return packed
    return replace(packed, least_rows=least_rows, for_fewer_rows=(dots, *dots.for_fewer_rows))


def _has_many_tiles(loops: Loops, axis: str, height: int) -> bool:
    """Return True where many tiles read a panel; those of many blocks of rows do."""
    return loops.in_rows or size_of(loops.extents[axis]) >= _LEAST_TILES * height


def _is_stored_along(loops: Loops, axis: str) -> bool:
    return all(access.offset.coefficient(axis) == 1 for access in loops.accesses if access.is_store)


def _panel(loops: Loops, vector: str, width: int, tiles: Tiles) -> Panel | None:
    """Return the operand that every tile reads again, row by row, where its rows are far apart in memory."""
    if len(tiles) != 1:
        return None
    (tile, height), (reduced,) = tiles[0], loops.reduce
    if not _has_many_tiles(loops, tile, height) or size_of(loops.extents[reduced]) < _LEAST_ROWS:
        return None
    for load in unconditional_loads(loops.stage.first.body):
        offset = offset_of(load.buffer, load.indices)
        far = offset.coefficient(reduced)
        is_far = far is not None and (not isinstance(far, int) or far >= _LEAST_DISTANCE)
        if is_far and offset.coefficient(vector) == 1 and offset.coefficient(tile) == 0:
            return _pack_operand(loops, load, vector, width)
    return None


def _pack_operand(loops: Loops, load: Load, vector: str, width: int, is_transposed: bool = False) -> Panel:
    """Return the panel of a step; of all steps where blocks of rows read them one after another."""
    (reduced,), name = loops.reduce, f"panel of {loops.stage.first.name}"
    shape: Shape = (loops.extents[reduced], width)
    if loops.in_rows:
        shape = (dims.ceildiv(loops.extents[vector], width), *shape)
    return Panel(load, Buffer(name, shape, load.dtype, "local"), is_transposed, is_kept=loops.in_rows)


def _in_k_blocks(loops: Loops, plan: Plan) -> Plan:
    """Block the reduction over a long panel that is kept: a block stays in the second-level cache for all tiles."""
    panel, (reduced,) = plan.panel, plan.reduce
    extent = loops.extents[reduced]
    if panel is None or not panel.is_kept or not isinstance(extent, int) or extent < 2 * _BLOCK_DEPTH:
        return plan
    ((rows, height),) = plan.tiles
    count = loops.extents[rows]
    if not isinstance(count, int):
        return plan
    first, size = loops.stage.first, -(-count // height) * height * plan.unroll * plan.lanes
    sums = Buffer(f"sums of {first.name}", (size,), first.body.dtype, "local")
    return replace(plan, k_blocks=KBlocks(_BLOCK_DEPTH, sums))
