"""One stage as loops: the outer ones are offered to the caller one by one, the innermost step is emitted here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.tir import Buffer, ComputeBlock, Expr, Load
from kernelyard.tir.primfunc import neutral_element
from kernelyard_native_cpu.codegen import arithmetic
from kernelyard_native_cpu.codegen.expressions import Expressions, Lanes, iota
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.codegen.values import Value, int_literal
from kernelyard_native_cpu.schedule.plan import Plan
from kernelyard_native_cpu.schedule.stages import Stage

Axes = dict[str, Value]
Points = list[Axes]


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
        """The loops over spatial axes, outermost first. Tiles of a contraction are walked along the tile axes first,
        so that the vectors they share stay in cache."""
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
        if plan.masked:
            return OuterLoop(1, lambda points, i: [{**axes, name: int_literal(0)} for axes in points])
        return self._blocked_loop(name, plan.lanes, plan.unroll)

    def _tile_loop(self, name: str, height: int) -> OuterLoop:
        return self._blocked_loop(name, 1, height)

    def _blocked_loop(self, name: str, lanes: int, times: int) -> OuterLoop:
        """Steps of `times` pieces of `lanes` values; pieces that would end outside are moved back inside."""
        extent, width = self._extent(name), lanes * times
        fits = isinstance(extent, int) and extent % width == 0

        def expand(points: Points, i: Value) -> Points:
            start = self.e.mul(i, int_literal(width))
            starts = [self.e.add(start, int_literal(lanes * k)) for k in range(times)]
            if not fits:
                last = self.memory.dim(extent - lanes)
                starts = [self.e.intrinsic("smin", s, last) if s.ref != "0" else s for s in starts]
            # Moved pieces may coincide; each is needed once.
            unique = list({s.ref: s for s in starts}.values())
            return [{**axes, name: s} for axes in points for s in unique]

        return OuterLoop(dims.ceildiv(extent, width), expand)

    def run(self, loops: Sequence[OuterLoop], points: Points) -> None:
        """The given loops one inside the other, and the step inside of them."""
        if not loops:
            self.step(points)
            return
        loop, inner = loops[0], loops[1:]
        if loop.count == 1:
            self.run(inner, loop.expand(points, int_literal(0)))
            return

        def body(i: Value, _: list[Value]) -> list[Value]:
            self.run(inner, loop.expand(points, i))
            return []

        self._loop(loop.count, body)

    def _loop(
        self, extent: Dim, body: Callable[[Value, list[Value]], Sequence[Value]], inits: Sequence[Value] = ()
    ) -> list[Value]:
        runs = isinstance(extent, int) and extent > 0
        return self.e.loop(int_literal(0), self.memory.dim(extent), body, inits, runs=runs)

    # --- the innermost step -----------------------------------------------------------------------------------------
    def step(self, points: Points) -> None:
        """All that is done for some points of the outer loops."""
        if self.stage.is_ordered:
            self._run_in_order(points)
        elif self.stage.reduce or self.stage.first.reducer:
            self._reduce(points)
        else:
            for axes in points:
                self._finish(axes, self._lanes(), {})

    def _lanes(self) -> Lanes | None:
        plan = self.plan
        if plan.vector is None:
            return None
        return Lanes(plan.vector, plan.lanes, self._lanes_within(self._extent(plan.vector)) if plan.masked else None)

    def _lanes_within(self, extent: Dim) -> Value:
        """A mask of the lanes below an extent."""
        count = self.plan.lanes
        if isinstance(extent, int):
            return Value(f"<{', '.join(f'i1 {str(n < extent).lower()}' for n in range(count))}>", "i1", count)
        return self.e.compare("slt", iota(count), self.memory.dim(extent))

    def _finish(self, axes: Axes, lanes: Lanes | None, known: dict[Expr, Value], first_done: bool = False) -> None:
        """Compute and store the blocks' elements; each may use the elements of those before it."""
        expressions = Expressions(self.memory, axes, lanes, known)
        for block in self.stage.blocks[first_done:]:
            self._keep(expressions, block, expressions.value(block.body))

    def _keep(self, expressions: Expressions, block: ComputeBlock, value: Value) -> None:
        expressions.known[Load(block.output, block.indices)] = value
        if block.output in self.stored:
            expressions.store(block.output, block.indices, value)

    def _run_in_order(self, points: Points) -> None:
        block = self.stage.first

        def level(names: Sequence[str], axes: Axes) -> None:
            if not names:
                expressions = Expressions(self.memory, axes)
                expressions.store(block.output, block.indices, expressions.value(block.body))
                return

            def body(i: Value, _: list[Value]) -> list[Value]:
                level(names[1:], {**axes, names[0]: i})
                return []

            self._loop(self._extent(names[0]), body)

        for axes in points:
            level(self.plan.reduce, axes)

    # --- reductions ---------------------------------------------------------------------------------------------------
    def _reduce(self, points: Points) -> None:
        block = self.stage.first
        if block.reducer in ("argmax", "argmin"):
            results = self._find_extreme(points)
        else:
            results = self._accumulate(points)
        lanes = None if self.plan.vector_is_reduced else self._lanes()
        for axes, value in zip(points, results, strict=True):
            expressions = Expressions(self.memory, axes, lanes)
            if block.init is not None and block.reducer not in ("argmax", "argmin"):
                start = expressions.value(block.init)
                value = arithmetic.combine(self.e, str(block.reducer), start, value, block.body.dtype)
            self._keep(expressions, block, value)
            self._finish(axes, lanes, expressions.known, first_done=True)

    def _neutral(self, lanes: int) -> Value:
        block = self.stage.first
        element = neutral_element(str(block.reducer), block.body.dtype)
        return self.e.broadcast(arithmetic.constant(element.value, element.dtype), lanes)

    def _accumulate(self, points: Points) -> list[Value]:
        reducer, dtype = str(self.stage.first.reducer), self.stage.first.body.dtype
        copies = self.plan.unroll if self.plan.vector_is_reduced else 1
        starts = [self._neutral(self.plan.lanes)] * (len(points) * copies)
        names = [name for name in self.plan.reduce if name != self.plan.vector]
        if not self.plan.vector_is_reduced:
            return self._nested(names, points, starts, self._add_point)
        totals = self._nested(names, points, starts, self._along_lanes)
        results: list[Value] = []
        for number in range(len(points)):
            total = totals[number]
            for copy in range(1, copies):
                total = arithmetic.combine(self.e, reducer, total, totals[copy * len(points) + number], dtype)
            results.append(arithmetic.across_lanes(self.e, reducer, total, dtype))
        return results

    def _nested(
        self,
        names: Sequence[str],
        points: Points,
        states: list[Value],
        innermost: Callable[[Points, list[Value]], list[Value]],
    ) -> list[Value]:
        """Loops over reduce axes that carry the accumulators."""
        if not names:
            return innermost(points, states)
        name, extent = names[0], self._extent(names[0])
        if extent == 1:
            return self._nested(names[1:], points, states, innermost)

        def body(i: Value, carried: list[Value]) -> list[Value]:
            return self._nested(names[1:], [{**axes, name: i} for axes in points], carried, innermost)

        return self._loop(extent, body, states)

    def _add_point(self, points: Points, states: list[Value]) -> list[Value]:
        return [self._combined(axes, state, self._lanes()) for axes, state in zip(points, states, strict=True)]

    def _combined(self, axes: Axes, state: Value, lanes: Lanes | None, mask: Value | None = None) -> Value:
        block = self.stage.first
        value = Expressions(self.memory, axes, lanes).value(block.body)
        if mask is not None:
            value = self.e.select(mask, self.e.broadcast(value, mask.lanes), self._neutral(mask.lanes))
        return arithmetic.combine(self.e, str(block.reducer), state, value, block.body.dtype)

    def _along_lanes(self, points: Points, states: list[Value]) -> list[Value]:
        """The reduced vector axis: wide steps over several accumulators, single vectors, and what is left over."""
        plan = self.plan
        name, lanes = plan.vector, plan.lanes
        assert name is not None
        extent = self._extent(name)
        if plan.masked:
            return self._masked_step(points, states, int_literal(0), self._lanes_within(extent))
        width, count = lanes * plan.unroll, len(points)

        def at(i: Value, states: list[Value], copies: int) -> list[Value]:
            new = list(states)
            for copy in range(copies):
                place = self.e.add(i, int_literal(copy * lanes))
                for number, axes in enumerate(points):
                    slot = copy * count + number
                    new[slot] = self._combined({**axes, name: place}, states[slot], self._lanes())
            return new

        wide_end, end = extent - extent % width, extent - extent % lanes
        if plan.unroll > 1 and wide_end != 0:
            states = self._steps(0, wide_end, width, lambda i, s: at(i, s, plan.unroll), states)
        if plan.unroll == 1:
            wide_end = 0
        if end != wide_end:
            states = self._steps(wide_end, end, lanes, lambda i, s: at(i, s, 1), states)
        return states if end == extent else self._left_over(points, states, extent, end)

    def _steps(
        self,
        begin: Dim,
        end: Dim,
        step: int,
        body: Callable[[Value, list[Value]], list[Value]],
        states: list[Value],
    ) -> list[Value]:
        runs = isinstance(end, int) and isinstance(begin, int) and end > begin
        if runs and end == begin + step:
            return body(self.memory.dim(begin), states)
        return self.e.loop(self.memory.dim(begin), self.memory.dim(end), body, states, step, runs)

    def _left_over(self, points: Points, states: list[Value], extent: Dim, done: Dim) -> list[Value]:
        """The last vector, moved back to end at the extent; lanes that were counted already are left out."""
        lanes = self.plan.lanes
        first_new = self.memory.dim(done - (extent - lanes))
        mask = self.e.compare("sge", iota(lanes), first_new)
        return self._masked_step(points, states, self.memory.dim(extent - lanes), mask)

    def _masked_step(self, points: Points, states: list[Value], start: Value, mask: Value) -> list[Value]:
        """One vector of the reduced axis, of which some lanes count."""
        name = str(self.plan.vector)
        new = list(states)
        for number, axes in enumerate(points):
            new[number] = self._combined({**axes, name: start}, states[number], self._lanes(), mask)
        return new

    def _find_extreme(self, points: Points) -> list[Value]:
        block = self.stage.first
        assert block.arg is not None
        lanes = self._lanes()
        count = self.plan.lanes
        starts = [self._neutral(count)] * len(points)
        firsts = [self.e.broadcast(Expressions(self.memory, axes, lanes).value(block.arg), count) for axes in points]

        def innermost(points: Points, states: list[Value]) -> list[Value]:
            best, found = states[: len(points)], states[len(points) :]
            for number, axes in enumerate(points):
                expressions = Expressions(self.memory, axes, lanes)
                value, arg = expressions.value(block.body), expressions.value(block.arg)  # pyright: ignore[reportArgumentType]
                wins = arithmetic.is_more_extreme(self.e, str(block.reducer), value, best[number], block.body.dtype)
                best[number] = self.e.select(wins, value, best[number])
                found[number] = self.e.select(wins, arg, found[number])
            return best + found

        states = self._nested(self.plan.reduce, points, starts + firsts, innermost)
        return states[len(points) :]
