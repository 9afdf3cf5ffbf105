"""Tile selection: the available tiles, and a cost model for when nothing can be measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelyard import dtypes
from kernelyard.dims import Dim
from kernelyard_cutlass.gpus import Gpu
from kernelyard_cutlass.kernels import LEAST_COPY_NBYTES, MOST_ACCESS_NBYTES, Tile

_NARROW = (
    Tile(256, 128, 32, 64, 64, 3),
    Tile(128, 256, 32, 64, 64, 3),
    Tile(128, 128, 32, 64, 64, 4),
    Tile(128, 128, 64, 64, 64, 3),
    Tile(256, 64, 32, 64, 64, 4),
    Tile(64, 256, 32, 64, 64, 4),
    Tile(128, 64, 32, 64, 32, 6),
    Tile(64, 128, 32, 32, 64, 6),
    Tile(128, 64, 64, 64, 32, 3),
    Tile(64, 128, 64, 32, 64, 3),
    Tile(64, 64, 32, 32, 32, 8),
    Tile(64, 64, 64, 32, 32, 5),
)
_TF32 = (
    Tile(128, 128, 16, 64, 64, 5),
    Tile(256, 64, 16, 64, 64, 4),
    Tile(64, 256, 16, 64, 64, 4),
    Tile(128, 64, 16, 64, 32, 6),
    Tile(64, 128, 16, 32, 64, 6),
    Tile(64, 64, 16, 32, 32, 8),
    Tile(64, 64, 32, 32, 32, 5),
)
_SPLIT = (
    Tile(128, 128, 16, 32, 64, 4),
    Tile(256, 64, 16, 64, 32, 3),
    Tile(64, 256, 16, 32, 64, 3),
    Tile(128, 64, 16, 64, 32, 4),
    Tile(64, 128, 16, 32, 64, 4),
    Tile(64, 64, 16, 32, 32, 3),
    Tile(64, 64, 32, 32, 32, 3),
)
_BYTES = (
    Tile(256, 128, 64, 64, 64, 3),
    Tile(128, 256, 64, 64, 64, 3),
    Tile(128, 128, 64, 64, 64, 5),
    Tile(128, 64, 64, 64, 32, 6),
    Tile(64, 128, 64, 32, 64, 6),
    Tile(64, 64, 64, 32, 32, 8),
)
# By what `Math` multiplies with; and how many products it does in the time of one of float16.
TILES = {"float16": _NARROW, "bfloat16": _NARROW, "tf32": _TF32, "3xtf32": _SPLIT, "int8": _BYTES}
RATES = {"float16": 1.0, "bfloat16": 1.0, "tf32": 0.5, "3xtf32": 1 / 6, "int8": 2.0}
# Sizes that stand for those that are not known.
REPRESENTATIVE_ROWS = (1, 64, 256, 1024, 4096)
REPRESENTATIVE_SIZE = 1024
START_CLOCKS = 1500  # from a block's start to its first product, and from its last one to the stored result
MOST_REGISTERS = 65536
_WASTED_STAGES = 2  # without copies that overlap, a second set of operands is all that helps


@dataclass(frozen=True)
class Problem:
    """`batch` products of (m, k) by (k, n), of which the operands are stored in `itemsize` bytes."""

    m: int
    n: int
    k: int
    batch: int
    itemsize: int


def alignment_of(size: Dim, dtype: str) -> int:
    """Return the most elements that rows of `size` elements can be read by at once: a power of two, of at most 16
    bytes.

    Example:
        >>> alignment_of(24, "float16"), alignment_of(7, "float32")
        (8, 1)
    """
    most = MOST_ACCESS_NBYTES // dtypes.itemsize(dtype)
    return math.gcd(size, most) if isinstance(size, int) else 1


def tiles_for(multiplication: str, copied_nbytes: int, gpu: Gpu, itemsize: int) -> tuple[Tile, ...]:
    """Return the tiles that fit the GPU. copied_nbytes: that each operand is read by at once, the least of both."""
    tiles: Iterable[Tile] = TILES[multiplication]
    if copied_nbytes < LEAST_COPY_NBYTES:
        tiles = dict.fromkeys(Tile(t.m, t.n, t.k, t.warp_m, t.warp_n, _WASTED_STAGES) for t in tiles if t.k <= 32)
    return tuple(tile for tile in tiles if tile.shared_nbytes(itemsize) <= gpu.shared_nbytes)


def clocks(tile: Tile, problem: Problem, multiplication: str, gpu: Gpu) -> float:
    """Estimate the time of a matmul by the cost model, in clock cycles.

    Blocks run in waves, as many at a time as shared memory, threads and registers allow. Within a wave a block is
    bound by the tensor cores that it shares with its neighbours, or by reading its operands.
    """
    blocks = math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n) * problem.batch
    threads = 32 * tile.warps
    registers = threads * min(255, 40 + tile.warp_m * tile.warp_n // 32 + 4 * (tile.warp_m + tile.warp_n) // 4)
    together = max(
        1,
        min(
            gpu.shared_nbytes // tile.shared_nbytes(problem.itemsize),
            gpu.threads // threads,
            MOST_REGISTERS // registers,
        ),
    )
    neighbours = min(together, math.ceil(blocks / gpu.multiprocessors))
    waves = math.ceil(blocks / (gpu.multiprocessors * neighbours))
    depth = math.ceil(problem.k / tile.k) * tile.k
    # Four tensor cores; a warp keeps one busy only where it has enough products between two reads of its operands.
    busy = min(1.0, neighbours * tile.warps / 8) * min(1.0, tile.warp_m * tile.warp_n / (64 * 32)) ** 0.25
    products = neighbours * tile.m * tile.n * depth / (gpu.products * RATES[multiplication] * busy)
    reads = neighbours * (tile.m + tile.n) * depth * problem.itemsize / gpu.nbytes
    return waves * (max(products, reads) + START_CLOCKS)


def rank_tiles(tiles: Sequence[Tile], problem: Problem, multiplication: str, gpu: Gpu) -> list[Tile]:
    """Sort tiles by estimated time, the fastest first; ties keep their order."""
    return sorted(tiles, key=lambda tile: clocks(tile, problem, multiplication, gpu))


def choose_tiles(
    tiles: Sequence[Tile], problems: Sequence[Problem], multiplication: str, gpu: Gpu, each: int
) -> tuple[Tile, ...]:
    """Return the first `each` tiles for every problem, none twice."""
    best = (rank_tiles(tiles, problem, multiplication, gpu)[:each] for problem in problems)
    return tuple(dict.fromkeys(tile for some in best for tile in some))
