"""GEMV and skinny GEMM: each element of the matrix is read once, and memory bandwidth bounds the time."""

from __future__ import annotations

from dataclasses import replace

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import Buffer, Declined, Load, axes_of, offset_of
from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import KBlocks, Plan, Stream, size_of
from kernelyard_native_cpu.schedule.tiling import FEW_ROWS, Tiles, best_tile, dot_products

# The prefetch distance in steps of the reduced axis: about the latency of memory.
_STEPS_AHEAD = 48
# A smaller matrix may be in cache, and is there soon.
_LEAST_BYTES = 1 << 20
_CACHE_LINE = 64
# Vectors of a row that are read together where one vector is multiplied: more of each page, before the next is needed.
_WIDTH = 8
# Steps of the reduced axis in a part: the vectors of two parts and the rows' elements fit into the first cache.
_DEPTH = 64


def gemv(loops: Loops) -> Plan | Declined:
    """Return all rows at once, so that the matrix is read once; as much of each of its rows as registers allow."""
    vector = loops.vector
    if loops.in_order or vector is None or len(loops.reduce) != 1 or loops.is_masked(vector):
        return Declined("the stage does not reduce exactly one axis, or has no axis of whole vectors")
    matrix = _matrix(loops, vector)
    rows = _rows(loops, matrix) if matrix else None
    if loops.in_rows and loops.stage.is_contraction:
        return Declined("the rows are some of many, which read the matrix one after another")
    if matrix is None or rows is None:
        return Declined("the stage is not a product of a matrix and a known number of vectors")
    if len(rows) > 1 or (rows and rows[0][1] > FEW_ROWS):
        return Declined(f"there are more than {FEW_ROWS} vectors, or they have several axes")
    plan = replace(loops.scalar(), vector=vector, lanes=loops.lanes(vector))
    if vector in loops.reduce:
        if not loops.stage.is_contraction:
            return Declined("lanes lie along the reduced axis, and the matrix is multiplied by one vector")
        return _dot_products(loops, plan, matrix)
    return _tile_rows(loops, replace(plan, stream=_stream(loops, matrix)), rows)


def _tile_rows(loops: Loops, plan: Plan, rows: Tiles) -> Plan | Declined:
    """Return all rows in one tile, or in several that take the matrix block by block; declined where it is in cache
    anyway.
    """
    count = rows[0][1] if rows else 1
    vectors = loops.vectors(str(plan.vector))
    height, width = best_tile(count, vectors, loops.machine.vector_registers)
    if count == 1 and plan.stream is not None and vectors >= 2 * _WIDTH:
        width = _WIDTH
    plan = replace(plan, tiles=tuple((name, height) for name, _ in rows), unroll=width)
    if height >= count:
        return plan
    (reduced,), first = plan.reduce, loops.stage.first
    stores = [access.offset.coefficient(str(plan.vector)) for access in loops.accesses if access.is_store]
    if plan.stream is None or size_of(plan.extents[reduced]) < 2 * _DEPTH or stores != [1] * len(stores):
        return Declined(
            "registers do not hold all accumulators, and the matrix is in cache or short, or stores are strided"
        )
    size = -(-count // height) * height * width * plan.lanes
    sums = Buffer(f"sums of {first.name}", (size,), first.body.dtype, "local")
    return replace(plan, k_blocks=KBlocks(_DEPTH, sums))


def _matrix(loops: Loops, vector: str) -> Load | None:
    """Return the largest operand of a contraction that is read along the vectors, each element once."""
    first = loops.stage.first
    if first.reducer != "sum":
        return None
    operands = [load for load in first.loads if axes_of(load) >= _find_reduced_axes(loops)]
    candidates = [load for load in operands if vector in axes_of(load) and _is_read_once(load)]
    return max(candidates, key=lambda load: size_of(load.buffer.numel), default=None)


def _find_reduced_axes(loops: Loops) -> set[str]:
    return {axis.name for axis in loops.stage.reduce if axis.extent != 1}


def _rows(loops: Loops, matrix: Load) -> Tiles | None:
    """Return the axes along which the matrix is used again, those of the vectors, and how often.

    None where the stage is no such product, how often is not known, or other stages share these axes row by row.
    """
    reduced, stage = _find_reduced_axes(loops), loops.stage
    columns = axes_of(matrix) - reduced
    if not any(columns - axes_of(load) for load in stage.first.loads if axes_of(load) >= reduced):
        return None
    # Of the axes as they were collapsed: one of a single element may stand for all those before it.
    axes = [axis.name for axis in stage.spatial if axis.name not in axes_of(matrix) and loops.extents[axis.name] != 1]
    if not all(name in loops.spatial and isinstance(loops.extents[name], int) for name in axes):
        return None
    return tuple((name, size_of(loops.extents[name])) for name in axes)


def _dot_products(loops: Loops, plan: Plan, matrix: Load) -> Plan:
    """Return tiles of dot products: rows of the matrix are read in order, those of the next tile prefetched."""
    tiles = dot_products(loops, str(plan.vector))
    heights = [(name, height) for name, height in tiles if name in axes_of(matrix)]
    if not _is_large(matrix) or len(heights) != 1:
        return replace(plan, tiles=tiles)
    return replace(plan, tiles=tiles, stream=Stream(matrix, *heights[0], is_aligned=True))


def _stream(loops: Loops, matrix: Load) -> Stream | None:
    """Return the matrix, where it is too large to be in cache."""
    (reduced,) = loops.reduce
    if not _is_large(matrix):
        return None
    step = offset_of(matrix.buffer, matrix.indices).coefficient(reduced)
    is_aligned = isinstance(step, int) and step * dtypes.itemsize(matrix.dtype) % _CACHE_LINE == 0
    return Stream(matrix, reduced, _STEPS_AHEAD, is_aligned)


def matrix_stream(loops: Loops, vector: str) -> Stream | None:
    """Return the matrix of a product along its vectors, to be prefetched where it is too large to be in cache."""
    matrix = _matrix(loops, vector) if len(loops.reduce) == 1 else None
    return _stream(loops, matrix) if matrix else None


def _is_large(matrix: Load) -> bool:
    return size_of(matrix.buffer.numel) * dtypes.itemsize(matrix.dtype) >= _LEAST_BYTES


def _is_read_once(load: Load) -> bool:
    """Return True when different points of its axes read different elements."""
    found: set[str] = set()
    for index in load.indices:
        axes = axes_of(index)
        if len(axes) > 1 or axes & found:
            return False
        found |= axes
    return bool(found)
