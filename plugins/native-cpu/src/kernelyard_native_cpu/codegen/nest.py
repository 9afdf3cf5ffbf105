"""One stage as loops: the outer ones are offered to the caller one by one, the innermost step is emitted here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Axis, Binary, Buffer, ComputeBlock, Expr, Load, Stage, unconditional_loads
from kernelyard_llvm.values import Value, int_literal, literal_int
from kernelyard_native_cpu.codegen.expressions import Expressions, Lanes
from kernelyard_native_cpu.codegen.k_blocking import KBlocking
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.codegen.reduction import ReductionLoops
from kernelyard_native_cpu.schedule.loops import is_transposed
from kernelyard_native_cpu.schedule.plan import Panel, Plan

Axes = dict[str, Value]
Points = list[Axes]

_PANEL_START = Axis("panel")  # the first value of the vector axis that a panel holds
_PANEL_STEP = Axis("panel step")  # its number, in a buffer that has the panels of all steps


@dataclass(frozen=True)
class OuterLoop:
    """`count` iterations; each replaces a point by the points that it stands for."""

    count: Dim
    expand: Callable[[Points, Value], Points]


class Nest:
    """The loops of a stage. outer: values of the axes that stand outside; stored: buffers that others will read."""

    def __init__(
        self, memory: Memory, stage: Stage, plan: Plan, outer: Mapping[str, Value], stored: frozenset[Buffer]
    ) -> None:
        self.memory = memory
        self.e = memory.emitter
        self.stage = stage
        self.plan = plan
        self.stored = stored
        everything = (*stage.spatial, *stage.reduce)
        self.axes: Axes = {axis.name: int_literal(0) for axis in everything} | dict(outer)

    # --- loops ----------------------------------------------------------------------------------------------------
    def outer_loops(self) -> list[OuterLoop]:
        """Return the loops over spatial axes, outermost first.

        Tiles of a contraction are walked along the tile axes first, so that the vectors they share stay in cache.
        """
        plan = self.plan
        tiles = dict(plan.tiles)
        plain = [name for name in plan.spatial if name not in tiles and name != plan.vector]
        loops = [self._plain_loop(name) for name in plain]
        vector = [] if plan.vector is None or plan.vector_is_reduced else [self._vector_loop()]
        return loops + vector + [self._tile_loop(name, height) for name, height in plan.tiles]

    def _extent(self, name: str) -> Dim:
        return self.plan.extents[name]

    def _plain_loop(self, name: str) -> OuterLoop:
        return OuterLoop(self._extent(name), lambda points, i: [{**axes, name: i} for axes in points])

    def _vector_loop(self) -> OuterLoop:
        plan = self.plan
        name = plan.vector
        assert name is not None
        width = plan.lanes * max(plan.scan.row, 1) if plan.scan else plan.lanes
        if plan.masked or width > plan.lanes:
            steps = dims.ceildiv(self._extent(name), width)
            return OuterLoop(steps, lambda points, i: [{**a, name: self.e.mul(i, width)} for a in points])
        return self._block_loop(name, plan.lanes, plan.unroll)

    def _tile_loop(self, name: str, height: int) -> OuterLoop:
        return self._block_loop(name, 1, height)

    def _block_loop(self, name: str, lanes: int, times: int) -> OuterLoop:
        """Return steps of `times` pieces of `lanes` values; what would end outside is moved back inside."""
        extent, width = self._extent(name), lanes * times

        def expand(points: Points, i: Value) -> Points:
            start = self.e.mul(i, width)
            if self._holds(name, width):
                is_divided = isinstance(extent, int) and extent % width == 0
                start = start if is_divided else self._at_most(start, extent - width)
                starts = [self.e.add(start, lanes * k) for k in range(times)]
            else:
                starts = [self._at_most(self.e.add(start, lanes * k), extent - lanes) for k in range(times)]
            # Moved pieces may coincide; each is needed once. The last axis comes first: a row of a tile is done with
            # before the next begins, so that the scalar it is multiplied by needs a register no longer.
            unique = list({s.ref: s for s in starts}.values())
            return [{**axes, name: s} for s in unique for axes in points]

        return OuterLoop(dims.ceildiv(extent, width), expand)

    def _holds(self, name: str, width: int) -> bool:
        """Return True where an axis is known to have so many values, for instance because this version of the plan is
        chosen only then: their places are constants apart."""
        extent = self._extent(name)
        if isinstance(extent, int):
            return extent >= width
        return self.plan.conditions.get(name, 0) >= width

    def _at_most(self, start: Value, last: Dim) -> Value:
        known = literal_int(start)
        if known is not None and isinstance(last, int):
            return int_literal(min(known, last))
        return start if known == 0 else self.e.intrinsic("smin", start, self.memory.dim(last))

    def run(self, loops: Sequence[OuterLoop], points: Points) -> None:
        """Emit the given loops, nested, with the step inside."""
        if not loops:
            self.step(points)
            return
        loop, inner = loops[0], loops[1:]
        if loop.count == 1:
            self.run(inner, loop.expand(points, int_literal(0)))
            return

        with self._loop(loop.count) as (i, _):
            self.run(inner, loop.expand(points, i))

    def pack_all(self) -> None:
        """Pack the panels of all steps of the vector axis."""
        steps = self._vector_loop()
        with self._loop(steps.count) as (i, _):
            self.pack(self._at_panel(steps, i))

    def run_packed(self) -> None:
        """Emit all loops, over the panels that `pack_all` made."""
        steps, *tiles = self.outer_loops()[-1 - len(self.plan.tiles) :]
        with self._loop(steps.count) as (i, _):
            points = self.use_panel(self._at_panel(steps, i))
            if self.plan.k_blocks:
                self.run_k_blocks(points)
            else:
                self.run(tiles, points)
        self.memory.packed = {}

    def _at_panel(self, steps: OuterLoop, number: Value) -> Points:
        return [{**axes, _PANEL_STEP.name: number} for axes in steps.expand([self.axes], number)]

    def _loop(self, extent: Dim) -> AbstractContextManager[tuple[Value, list[Value]]]:
        return self.e.loop(0, self.memory.dim(extent), runs=isinstance(extent, int) and extent > 0)

    # --- the innermost step -----------------------------------------------------------------------------------------
    def step(self, points: Points) -> None:
        """Emit the body for some points of the outer loops."""
        if self.plan.scan:
            from kernelyard_native_cpu.codegen.scans import ScanLoop  # inside, as below: few kernels scan or sort

            ScanLoop(self.memory, self.stage.first, self.plan, self.lanes_at).run(points)
        elif self.stage.is_ordered:
            self._run_in_order(self.plan.reduce, points)
        elif self.plan.sort:
            from kernelyard_native_cpu.codegen.sorting import SortedRow

            for axes in points:
                SortedRow(self.memory, self.stage.first, self.plan, axes).run(self._finish_reduced)
        elif self.stage.reduce or self.stage.first.reducer:
            self._reduce(points)
        else:
            for axes, known in zip(points, self._load_transposed_tiles(points), strict=True):
                self._finish(axes, self.lanes_at(axes), known)

    def _load_transposed_tiles(self, points: Points) -> list[dict[Expr, Value]]:
        """Load transposed tiles, a row per lane; return the loads that their columns are, for each point."""
        plan = self.plan
        known: list[dict[Expr, Value]] = [{} for _ in points]
        if plan.transposed_axis is None or len(points) != plan.lanes or plan.vector is None:
            return known
        first = Expressions(self.memory, points[0], self.lanes_at(points[0]))
        for load in dict.fromkeys(load for block in self.stage.blocks for load in unconditional_loads(block.body)):
            offset = self.memory.offset(load.buffer, load.indices)
            if is_transposed(offset, plan.vector, plan.transposed_axis):
                columns = first.load_transposed(load, offset)
                for values, column in zip(known, columns, strict=True):
                    values[load] = column
        return known

    def lanes_at(self, axes: Axes) -> Lanes | None:
        """Return the lanes of a vector that starts where `axes` stand."""
        plan = self.plan
        if plan.vector is None:
            return None
        if not plan.masked:
            return Lanes(plan.vector, plan.lanes)
        extent = self.memory.dim(self._extent(plan.vector))
        return Lanes(plan.vector, plan.lanes, self.e.sub(extent, axes[plan.vector]))

    def _finish(self, axes: Axes, lanes: Lanes | None, known: dict[Expr, Value], first_done: bool = False) -> None:
        """Compute and store the blocks' elements; each may use the elements of those before it."""
        expressions = Expressions(self.memory, axes, lanes, known)
        for block in self.stage.blocks[first_done:]:
            self._keep(expressions, block, expressions.value(block.body))

    def _keep(self, expressions: Expressions, block: ComputeBlock, value: Value) -> None:
        expressions.known[Load(block.output, block.indices)] = value
        if block.output in self.stored:
            expressions.store(block.output, block.indices, value)

    def _run_in_order(self, names: Sequence[str], points: Points) -> None:
        """Emit the ordered axes, in order, outside of the points: neighbours are written together."""
        if not names:
            for axes in points:
                self._finish(axes, self.lanes_at(axes), {})
            return
        with self._loop(self._extent(names[0])) as (i, _):
            self._run_in_order(names[1:], [{**axes, names[0]: i} for axes in points])

    def pack(self, points: Points) -> Points:
        """Copy the plan's panel for some points of the vector axis; loads of it then read the copy.

        The returned points know where the panel starts.
        """
        panel = self.plan.panel
        assert panel is not None
        indices = self._panel_indices(panel)
        points = self._from_panel_start(points)
        self.memory.packed = {}

        def copy(row: Axes) -> None:
            for axes in points:
                expressions = Expressions(self.memory, {**axes, **row}, self.lanes_at(axes))
                expressions.store(panel.buffer, indices, expressions.value(panel.operand))

        if panel.is_transposed:
            self._pack_transposed(panel, indices, points)
        else:
            self._each_row(self.plan.reduce, {}, copy)
        return self.use_panel(points)

    def use_panel(self, points: Points) -> Points:
        """Read the panel of some points of the vector axis from now on."""
        panel = self.plan.panel
        assert panel is not None
        self.memory.packed[panel.operand] = Load(panel.buffer, self._panel_indices(panel))
        return self._from_panel_start(points)

    def _panel_indices(self, panel: Panel) -> tuple[Expr, ...]:
        step = (_PANEL_STEP,) if panel.is_kept else ()
        return (*step, *map(Axis, self.plan.reduce), Binary("sub", Axis(str(self.plan.vector)), _PANEL_START))

    def _from_panel_start(self, points: Points) -> Points:
        return [{**axes, _PANEL_START.name: points[0][str(self.plan.vector)]} for axes in points]

    def _each_row(self, names: Sequence[str], row: Axes, copy: Callable[[Axes], None]) -> None:
        """Loops over reduced axes, one inside the other."""
        if not names:
            copy(row)
        elif names[0] in self.plan.unrolled_axes:
            extent = self._extent(names[0])
            assert isinstance(extent, int)
            for step in range(extent):
                self._each_row(names[1:], {**row, names[0]: int_literal(step)}, copy)
        else:
            with self._loop(self._extent(names[0])) as (step, _):
                self._each_row(names[1:], {**row, names[0]: step}, copy)

    def _pack_transposed(self, panel: Panel, indices: tuple[Expr, ...], points: Points) -> None:
        """Pack an operand that is contiguous along the reduced axis: square tiles are transposed in registers."""
        (reduced,), lanes, load = self.plan.reduce, self.plan.lanes, panel.operand
        assert isinstance(load, Load)
        offset = self.memory.offset(load.buffer, load.indices)

        with self._loop(dims.ceildiv(self._extent(reduced), lanes)) as (step, _):
            first = self._at_most(self.e.mul(step, lanes), self._extent(reduced) - lanes)
            for axes in points:
                here = Expressions(self.memory, {**axes, reduced: first}, self.lanes_at(axes))
                for n, column in enumerate(here.load_transposed(load, offset)):
                    at = {**axes, reduced: self.e.add(first, n)}
                    Expressions(self.memory, at, self.lanes_at(axes)).store(panel.buffer, indices, column)

    def _reduce(self, points: Points) -> None:
        loops = ReductionLoops(self.memory, self.stage.first, self.plan, self.lanes_at)
        values = loops.run(points)
        if self.plan.tile_scratch:
            self._finish_transposed(points, values, self.plan.tile_scratch)
            return
        for axes, value in zip(points, values, strict=True):
            self._finish_reduced(axes, None if self.plan.vector_is_reduced else self.lanes_at(axes), value)

    def run_k_blocks(self, points: Points) -> None:
        """Emit all tiles of one step of the vector axis, block by block of the reduced axis."""
        plan, blocks = self.plan, self.plan.k_blocks
        assert blocks is not None
        ((name, height),) = plan.tiles
        tiles = self._tile_loop(name, height)
        loops = ReductionLoops(self.memory, self.stage.first, plan, self.lanes_at)
        assert isinstance(tiles.count, int)

        def finish(points: Points, values: list[Value]) -> None:
            for axes, value in zip(points, values, strict=True):
                self._finish_reduced(axes, self.lanes_at(axes), value)

        KBlocking(self.memory, plan, blocks, loops, tiles.count, lambda tile: tiles.expand(points, tile)).run(finish)

    def _finish_reduced(self, axes: Axes, lanes: Lanes | None, value: Value) -> None:
        expressions = Expressions(self.memory, axes, lanes)
        if self.plan.sort and self.plan.sort.value is not None:
            expressions.known[self.plan.sort.value] = value
        else:
            self._keep(expressions, self.stage.first, value)
        self._finish(axes, lanes, expressions.known, first_done=True)

    def _finish_transposed(self, points: Points, values: Sequence[Value], scratch: Buffer) -> None:
        """Finish a tile with lanes along its rows' axis: it is stored, and transposed in square parts. Loops keep
        the code short: what follows the reduction is emitted once."""
        plan, first = self.plan, points[0]
        vector, along = str(plan.vector), str(plan.transposed_axis)
        width, height = plan.lanes * plan.unroll, len(points) // plan.unroll
        for n, value in enumerate(values):
            self.memory.store(scratch, int_literal(n * plan.lanes), value)
        used = 1 << (height - 1).bit_length()
        lanes = Lanes(along, used, int_literal(height) if height < used else None)

        with self.e.loop(0, plan.unroll, runs=True) as (column, _):
            start = self.e.mul(column, plan.lanes)
            places = [self.e.add(start, row * width) for row in range(height)]
            rows = [self.memory.load(scratch, place, plan.lanes) for place in places]
            rows += [rows[0]._replace(ref="poison", depth=0)] * (plan.lanes - height)
            for n, row in enumerate(self.e.transpose(rows)):
                self.memory.store(scratch, int_literal(height * width + n * plan.lanes), row)
            with self.e.loop(0, plan.lanes, runs=True) as (n, _):
                place = self.e.add(self.e.mul(n, plan.lanes), height * width)
                at = {**first, vector: self.e.add(first[vector], self.e.add(start, n))}
                self._finish_reduced(at, lanes, self.memory.load(scratch, place, used))
