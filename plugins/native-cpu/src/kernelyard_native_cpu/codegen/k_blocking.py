"""Blocking of a reduction: every tile is computed along a block of the reduced axis before the next block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard_llvm.values import Value
from kernelyard_native_cpu.codegen.expressions import Expressions
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.codegen.reducers import Axes
from kernelyard_native_cpu.codegen.reduction import ReductionLoops
from kernelyard_native_cpu.schedule.plan import KBlocks, Plan

Points = list[Axes]
TileAt = Callable[[Value], Points]


class KBlocking:
    """Loops of a plan with blocks of the reduced axis, for the tiles of one step of the vector axis.

    tiles: how many there are. tile_at: the points of a tile, by its number.
    """

    def __init__(self, memory: Memory, plan: Plan, blocks: KBlocks, loops: ReductionLoops, tiles: int, tile_at: TileAt):
        self.memory = memory
        self.e = memory.emitter
        self.plan = plan
        self.blocks = blocks
        self.loops = loops
        self.tiles = tiles
        self.tile_at = tile_at

    def run(self, finish: Callable[[Points, list[Value]], None]) -> None:
        """Emit the loop over the blocks; `finish` gets the results of each tile."""
        (reduced,) = self.plan.reduce
        extent = self.memory.dim(self.plan.extents[reduced])
        self._each_tile(lambda tile, points: self._keep(tile, self.loops.start(points)))

        with self.e.loop(0, extent, step=self.blocks.depth) as (begin, _):
            end = self.e.intrinsic("smin", self.e.add(begin, self.blocks.depth), extent)
            self._each_tile(lambda tile, points: self._advance(tile, points, begin, end))
        self._each_tile(
            lambda tile, points: finish(points, self.loops.finish(points, self._load_sums(tile, len(points))))
        )

    def _each_tile(self, body: Callable[[Value, Points], None]) -> None:
        with self.e.loop(0, self.tiles, runs=True) as (tile, _):
            body(tile, self.tile_at(tile))

    def _advance(self, tile: Value, points: Points, begin: Value, end: Value) -> None:
        kept = self._load_sums(tile, len(points))
        self._keep(tile, self.loops.advance(points, kept, begin, end, self._ahead(tile)))

    def _ahead(self, tile: Value) -> Callable[[Axes], None] | None:
        """Return what prefetches a tile's share of the next block, so that memory is always busy."""
        stream, vector = self.plan.stream, str(self.plan.vector)
        if stream is None:
            return None
        (reduced,) = self.plan.reduce
        lines = self.plan.unroll + (not stream.is_aligned)
        buffer, offset = stream.load.buffer, self.memory.offset(stream.load.buffer, stream.load.indices)

        def ask(axes: Axes) -> None:
            later = self.e.add(axes[reduced], self.blocks.depth)
            for turn in range(-(-lines // self.tiles)):
                line = self.e.add(tile, turn * self.tiles)
                place = self.e.add(axes[vector], self.e.mul(line, self.plan.lanes))
                at = {**axes, reduced: later, vector: place}
                self.memory.prefetch(buffer, Expressions(self.memory, at).first(offset))

        return ask

    def _place(self, tile: Value, number: int, count: int) -> Value:
        return self.e.add(self.e.mul(tile, count * self.plan.lanes), number * self.plan.lanes)

    def _load_sums(self, tile: Value, count: int) -> list[Value]:
        places = [self._place(tile, number, count) for number in range(count)]
        return [self.memory.load(self.blocks.sums, place, self.plan.lanes) for place in places]

    def _keep(self, tile: Value, values: Sequence[Value]) -> None:
        for number, value in enumerate(values):
            self.memory.store(self.blocks.sums, self._place(tile, number, len(values)), value)
