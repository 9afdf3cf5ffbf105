"""Reductions: loops over the reduced axes that carry the state of every point of a tile in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernelyard import dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import ComputeBlock, axes_of
from kernelyard_llvm.values import Value, float_literal, int_literal, iota, literal_int
from kernelyard_native_cpu.codegen.expressions import Expressions
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.codegen.reducers import Axes, Combine, DotProducts, LanesAt, Place, State
from kernelyard_native_cpu.schedule.plan import Plan

Step = Callable[[Sequence[Axes], list[State]], list[State]]
_CACHE_LINE = 64
Ahead = Callable[[Axes], None]  # of a step: ask for what a later one reads


class ReductionLoops:
    """The loops of a plan over the reduced axes, for a reducer."""

    def __init__(self, memory: Memory, block: ComputeBlock, plan: Plan, lanes_at: LanesAt) -> None:
        self.memory = memory
        self.e = memory.emitter
        self.plan = plan
        self.lanes_at = lanes_at
        kind = Place if block.reducer in ("argmax", "argmin") else DotProducts if plan.dot_product else Combine
        if plan.factored is not None:
            block = replace(block, body=plan.factored.rest)
        self.reducer = kind(memory, block, plan, lanes_at)
        self._prefetch_axis = _prefetch_axis(plan)

    def run(self, points: Sequence[Axes]) -> list[Value]:
        """Return the result for each point."""
        copies = self.plan.unroll if self.plan.vector_is_reduced else 1
        starts = [self.reducer.start(axes) for _ in range(copies) for axes in points]
        names = [name for name in self.plan.reduce if name != self.plan.vector]
        innermost = self._along_lanes if self.plan.vector_is_reduced else self._one_step
        states = self._nest_loops(names, points, starts, innermost)
        return [self.reducer.finish(axes, states[n :: len(points)]) for n, axes in enumerate(points)]

    def start(self, points: Sequence[Axes]) -> list[Value]:
        """Return the initial accumulators of the points."""
        return _flatten([self.reducer.start(axes) for axes in points])

    def advance(
        self, points: Sequence[Axes], kept: Sequence[Value], begin: Value, end: Value, ahead: Ahead | None
    ) -> list[Value]:
        """Accumulate a range of the only reduced axis; no lanes lie along it."""
        (reduced,) = self.plan.reduce

        with self.e.loop(begin, end, kept, runs=True) as (i, carried):
            inside = [{**axes, reduced: i} for axes in points]
            if ahead is not None:
                ahead(inside[0])
            carried[:] = _flatten(self._one_step(inside, [[value] for value in carried]))
        return carried

    def finish(self, points: Sequence[Axes], kept: Sequence[Value]) -> list[Value]:
        """Return the result for each point."""
        return [self.reducer.finish(axes, [[value]]) for axes, value in zip(points, kept, strict=True)]

    def _nest_loops(
        self,
        names: Sequence[str],
        points: Sequence[Axes],
        states: list[State],
        innermost: Step,
    ) -> list[State]:
        """Emit loops over reduced axes, one inside the other."""
        if not names:
            return innermost(points, states)
        name, extent = names[0], self.plan.extents[names[0]]

        def body(i: Value, states: list[State]) -> list[State]:
            inside = [{**axes, name: i} for axes in points]
            if name == self._prefetch_axis and not self._is_read_again(inside[0]):
                self._ask_ahead(inside)
            if not self.plan.has_groups or name != self.plan.reduce[0]:
                return self._nest_loops(names[1:], inside, states, innermost)
            return self._group(names[1:], inside, states, innermost)

        if name in self.plan.unrolled_axes:
            assert isinstance(extent, int)
            for step in range(extent):
                states = self._before_digit(name, step, states)
                # It belongs here, so that addresses have it as a displacement: sums with it need no register each.
                states = body(int_literal(step)._replace(depth=self.e.depth), states)
            return states
        return body(int_literal(0), states) if extent == 1 else self._loop(0, extent, 1, body, states)

    def _before_digit(self, name: str, step: int, states: list[State]) -> list[State]:
        """Return the states before a step of an axis: where it counts digits, the sums so far become worth more."""
        dot = self.plan.dot_product
        if not step or dot is None or dot.digits != name:
            return states
        assert isinstance(self.reducer, Combine), "only sums have digits"
        return [self.reducer.next_digit(state) for state in states]

    def _group(self, names: Sequence[str], points: Sequence[Axes], states: list[State], innermost: Step) -> list[State]:
        """Return the states with the sums of a group, which share a factor; points of a row share what is multiplied
        by its zero points or minima."""
        reducer, factored = self.reducer, self.plan.factored
        assert isinstance(reducer, Combine), "only sums have factors"
        starts = [reducer.start_of_group(axes) for axes in points]
        if factored is None or factored.shift is None:
            parts = self._nest_loops(names, points, starts, innermost)
            sums = [reducer.sum_of_group(part) for part in parts]
            return [reducer.add(*each, None) for each in zip(points, states, sums, strict=True)]
        times, count = factored.shift.times, len(points)
        rows = {self._row_of(axes): axes for axes in points}

        def both(points: Sequence[Axes], states: list[State]) -> list[State]:
            values = [Expressions(self.memory, axes).value(times) for axes in points[count:]]
            totals = [[self.e.add(state[0], value)] for state, value in zip(states[count:], values, strict=True)]
            return innermost(points[:count], states[:count]) + totals

        zeros: list[State] = [[float_literal(0.0)] for _ in rows]
        parts = self._nest_loops(names, [*points, *rows.values()], starts + zeros, both)
        shifted = dict(zip(rows, parts[count:], strict=True))
        return [
            reducer.add(axes, state, reducer.sum_of_group(part), shifted[self._row_of(axes)][0])
            for axes, state, part in zip(points, states, parts[:count], strict=True)
        ]

    def _row_of(self, axes: Axes) -> tuple[str, ...]:
        return tuple(value.ref for name, value in axes.items() if name != self.plan.vector)

    def _loop(
        self, begin: Dim, end: Dim, step: int, body: Callable[[Value, list[State]], list[State]], states: list[State]
    ) -> list[State]:
        """Return a loop that carries states."""
        runs = isinstance(end, int) and isinstance(begin, int) and end > begin
        if runs and end == begin + step:
            return body(self.memory.dim(begin), states)
        size, first, last = len(states[0]), self.memory.dim(begin), self.memory.dim(end)
        with self.e.loop(first, last, _flatten(states), step, runs) as (i, carried):
            carried[:] = _flatten(body(i, _unflatten(carried, size)))
        return _unflatten(carried, size)

    def _one_step(self, points: Sequence[Axes], states: list[State]) -> list[State]:
        return [self.reducer.step(axes, state, None) for axes, state in zip(points, states, strict=True)]

    def _is_read_again(self, axes: Axes) -> bool:
        """Return True where an earlier step of an unrolled axis read the same of the stream, such as another digit."""
        assert self.plan.stream is not None
        others = set(self.plan.unrolled_axes) - axes_of(self.plan.stream.load)
        return any(name in axes and literal_int(axes[name]) != 0 for name in others)

    def _ask_ahead(self, points: Sequence[Axes]) -> None:
        """Prefetch what later points read of the plan's stream: every cache line once."""
        stream = self.plan.stream
        if stream is None:
            return
        later = [{**axes, stream.axis: self.e.add(axes[stream.axis], stream.steps)} for axes in points]
        if not stream.is_aligned:
            name = str(self.plan.vector)
            later.append({**later[-1], name: self.e.add(later[-1][name], self.plan.lanes - 1)})
        buffer, offset = stream.load.buffer, self.memory.offset(stream.load.buffer, stream.load.indices)
        places = [Expressions(self.memory, axes, self.lanes_at(axes)).first(offset) for axes in later]
        different = list({place.ref: place for place in places}.values())
        vectors_of_line = max(1, _CACHE_LINE // (self.plan.lanes * dtypes.itemsize(buffer.dtype)))
        for place in different[:: vectors_of_line if stream.is_aligned else 1]:
            self.memory.prefetch(buffer, place)

    # --- the vector axis is reduced -----------------------------------------------------------------------------------
    def _along_lanes(self, points: Sequence[Axes], states: list[State]) -> list[State]:
        """Emit an unrolled loop over several copies of the states, a loop of single vectors, and the remainder loop."""
        plan = self.plan
        extent, lanes = plan.extents[str(plan.vector)], plan.lanes
        if plan.masked:
            return self._emit_masked_steps(points, states, extent)
        width = lanes * plan.unroll
        end = extent - extent % lanes
        wide_end = extent - extent % width if plan.unroll > 1 else 0
        if wide_end != 0:
            wide = lambda i, s: self._vector_step(points, s, i, plan.unroll)  # noqa: E731
            states = self._loop(0, wide_end, width, wide, states)
        if end != wide_end:
            states = self._loop(wide_end, end, lanes, lambda i, s: self._vector_step(points, s, i), states)
        if end == extent:
            return states
        # The last vector is moved back to end at the extent; lanes that were counted already are left out.
        start = extent - lanes
        mask = self.e.compare("sge", iota(lanes), self.memory.dim(end - start))
        return self._vector_step(points, states, self.memory.dim(start), 1, mask)

    def _emit_masked_steps(self, points: Sequence[Axes], states: list[State], extent: Dim) -> list[State]:
        """Emit steps of single vectors, in which lanes beyond the end do not count."""
        lanes = self.plan.lanes

        def step(i: Value, states: list[State]) -> list[State]:
            mask = self.e.lanes_below(lanes, self.e.sub(self.memory.dim(extent), i))
            return self._vector_step(points, states, i, 1, mask)

        if isinstance(extent, int) and extent <= lanes:
            return step(int_literal(0), states)
        return self._loop(0, extent, lanes, step, states)

    def _vector_step(
        self, points: Sequence[Axes], states: list[State], start: Value, copies: int = 1, mask: Value | None = None
    ) -> list[State]:
        """`copies` neighbouring vectors of the reduced axis, each into a copy of its own."""
        name, new = str(self.plan.vector), list(states)
        if mask is None:
            self._ask_ahead([{**axes, name: start} for axes in points])
        for copy in range(copies):
            place = self.e.add(start, copy * self.plan.lanes)
            for number, axes in enumerate(points):
                slot = copy * len(points) + number
                new[slot] = self.reducer.step({**axes, name: place}, states[slot], mask)
        return new


def _prefetch_axis(plan: Plan) -> str | None:
    """Return the reduced axis at whose steps the stream is prefetched: the last that is not unrolled, or a later one
    that it lies along."""
    if plan.stream is None:
        return None
    along = axes_of(plan.stream.load) if plan.stream.of_each_step else frozenset[str]()
    names = [name for name in plan.reduce if name != plan.vector]
    return next((name for name in reversed(names) if name in along or name not in plan.unrolled_axes), None)


def _flatten(states: Sequence[State]) -> list[Value]:
    return [value for state in states for value in state]


def _unflatten(values: Sequence[Value], size: int) -> list[State]:
    return [list(values[n : n + size]) for n in range(0, len(values), size)]
