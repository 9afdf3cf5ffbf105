"""Tiles of the output of a contraction that stay in registers."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.plugins.codegen_api import Buffer
from kernelyard_native_cpu.schedule.loops import Loops, even_parts, is_transposed
from kernelyard_native_cpu.schedule.plan import TYPICAL_EXTENT, Plan, size_of

Tiles = tuple[tuple[str, int], ...]

# Sums in a tile by its width in vectors, such that they and the operands fit into so many registers. Tiles of one row
# or two are wide: there are sums enough that none waits for the one before it.
MOST_HEIGHT = {32: {1: 16, 2: 14, 3: 9, 4: 6}, 16: {1: 10, 2: 6, 4: 2, 8: 1}}
# So few are all in one tile: what they are multiplied by is read once.
ROWS_OF_ONE_TILE = {32: 14, 16: 8}
_MOST_UNTILED = 4
# Dot products at a time: a register for each, for the operands' vectors, and to spare.
MOST_DOT_PRODUCTS = {32: 24, 16: 9}
# With so few rows, reading what they are multiplied by takes a good part of the time.
FEW_ROWS = 64
# A load takes so much of the time of a multiplication with addition: there are two ports for each, and loads of scalars
# are part of the multiplication.
_LOAD = 0.5


# Values that are the same in memory and in registers.
_KEPT_AS_THEY_ARE = ("float32", "float64", "int32", "int64")


def tile_cost(rows: int, vectors: int, height: int, width: int) -> float:
    """Return the time that tiles of a shape take to cover so many rows and vectors."""
    steps = -(-rows // height) * -(-vectors // width)
    return steps * (height * width + _LOAD * (height + width))


def widest_tile(height: int, registers: int) -> int:
    """Return the vectors of the widest tile that is so high."""
    return max(width for width, most in MOST_HEIGHT[registers].items() if most >= height)


def best_tile(rows: int, vectors: int, registers: int) -> tuple[int, int]:
    """Height and width of the tiles that take the least time; a few rows are all in one tile, so that what they are
    multiplied by is read once."""
    shapes = [(h, w) for w, most in MOST_HEIGHT[registers].items() for h in range(1, most + 1)]
    if rows <= ROWS_OF_ONE_TILE[registers]:
        shapes = [(h, w) for h, w in shapes if h == rows]
    return min(shapes, key=lambda shape: (tile_cost(rows, vectors, *shape), -shape[0] * shape[1]))


def find_reused_axes(loops: Loops, vector: str) -> list[str]:
    """Return the axes along which operands are used again, those that save most first, of equals the innermost."""
    others = loops.others(vector)
    reuse = {name: loops.reuse(name, vector) for name in others}
    return sorted((name for name in others if reuse[name]), key=lambda name: (-reuse[name], -others.index(name)))


def outer_product(loops: Loops, vector: str) -> tuple[Tiles, int]:
    """Rows of whole vectors: each vector that is loaded serves every row, each scalar every vector of its row.

    Returns the axis of the rows with how many, and the vectors of a row.
    """
    vectors = loops.vectors(vector)
    axes = find_reused_axes(loops, vector)
    if not axes:
        return (), even_parts(vectors, _MOST_UNTILED)
    registers = loops.machine.vector_registers
    if not isinstance(loops.extents[vector], int):  # for long ones: the widest tile loads the least
        widest = max(MOST_HEIGHT[registers])
        vectors = -(-vectors // widest) * widest
    height, width = best_tile(_rows(loops, axes[0]), vectors, registers)
    return ((axes[0], height),), width


def _rows(loops: Loops, axis: str) -> int:
    """Return the number of rows to tile for: many if it is symbolic."""
    extent = loops.extents[axis]
    return size_of(extent) if isinstance(extent, int) else max(size_of(extent), TYPICAL_EXTENT)


def with_tiles(loops: Loops, plan: Plan, tiles: Tiles, width: int) -> Plan:
    """Return the plan with tiles so many vectors wide, transposed where `transpose_tile` is possible."""
    plan = replace(plan, tiles=tiles, unroll=width)
    if len(tiles) != 1:
        return plan
    ((rows, height),) = tiles
    along = loops.extents[rows]
    transposed = transpose_tile(loops, plan) if isinstance(along, int) and height <= along else None
    return transposed or plan


def transpose_tile(loops: Loops, plan: Plan) -> Plan | None:
    """Return the plan with its tile transposed before it is stored, for as many rows as the tile has or more; None
    unless results are contiguous along their rows' axis in memory, and strided along the vector axis.
    """
    if len(plan.tiles) != 1 or plan.masked or plan.vector is None:
        return None
    ((rows, height),) = plan.tiles
    across = loops.extents[plan.vector]
    stores = [access.offset for access in loops.accesses if access.is_store]
    if not isinstance(across, int) or not 1 < height <= plan.lanes:
        return None
    if across < plan.lanes * plan.unroll or not any(is_transposed(store, plan.vector, rows) for store in stores):
        return None
    first = loops.stage.first
    if first.body.dtype not in _KEPT_AS_THEY_ARE:
        return None
    # The tile as it comes, and one square part of it transposed.
    size = height * plan.unroll * plan.lanes + plan.lanes * plan.lanes
    scratch = Buffer(f"tile of {first.name}", (size,), first.body.dtype, "local")
    return replace(plan, transposed_axis=rows, tile_scratch=scratch)


def dot_products(loops: Loops, vector: str) -> Tiles:
    """Return a tile of sums, each along the lanes of a vector of its own.

    Of rows of one operand by rows of the other.
    """
    axes = find_reused_axes(loops, vector)[:2]
    if len(axes) < 2:
        return tuple((name, min(_MOST_UNTILED, size_of(loops.extents[name]))) for name in axes)
    sizes = [_rows(loops, name) for name in axes]
    most = MOST_DOT_PRODUCTS[loops.machine.vector_registers]
    shapes = [(h, w) for h in range(1, most + 1) for w in range(1, _MOST_UNTILED + 1) if h * w <= most]
    # The operand with fewer rows is the higher side: what it is multiplied by is then read less often.
    few, many = sorted(range(2), key=lambda n: sizes[n])
    shapes = [(h, w) for h, w in shapes if h <= sizes[few] and w <= sizes[many]]
    best = min(shapes, key=lambda shape: (tile_cost(sizes[few], sizes[many], *shape), -shape[0] * shape[1]))
    return ((axes[many], best[1]), (axes[few], best[0]))
