"""Scans: totals carried in registers or in cache from step to step, or from vector to vector of the scanned axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import ComputeBlock, Expr, Load, neutral_element
from kernelyard_llvm.values import Value, int_literal
from kernelyard_native_cpu.codegen import arithmetic
from kernelyard_native_cpu.codegen.expressions import Expressions, Lanes
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.schedule.plan import Plan

Axes = dict[str, Value]
LanesAt = Callable[[Axes], Lanes | None]
# Rows of another axis that are added to its totals at once; more where all but the last are stored past the caches.
ROWS_AT_ONCE, STREAMED_ROWS = 4, 8


class ScanLoop:
    """The loop of a plan over the scanned axis, for a tile of points."""

    def __init__(self, memory: Memory, block: ComputeBlock, plan: Plan, lanes_at: LanesAt) -> None:
        assert plan.scan is not None
        self.memory = memory
        self.e = memory.emitter
        self.block = block
        self.plan = plan
        self.scan = plan.scan
        self.lanes_at = lanes_at
        self.dtype = block.body.dtype
        self.length = memory.dim(plan.extents[self.scan.of.axis])

    def run(self, points: Sequence[Axes]) -> None:
        """Write all totals of the points."""
        e = self.e
        with e.when(e.compare("sgt", self.length, 0)):
            if self.scan.row:
                self._row_by_row(points)
                return
            totals = [
                self._store(axes, int_literal(0), self._item(axes, int_literal(0), self.scan.of.first))
                for axes in points
            ]
            begin = int_literal(1)
            if self.scan.lanes > 1:
                (axes,) = points
                if self.is_streamed:
                    end = self._first_line(axes)
                    begin, totals = end, self._one_by_one(points, begin, end, totals)
                begin, totals = self._along_lanes(axes, begin, totals[0])
            self._one_by_one(points, begin, self.length, totals)

    def _one_by_one(self, points: Sequence[Axes], begin: Value, end: Value, totals: Sequence[Value]) -> list[Value]:
        """Add the elements of a range to the totals before it; return the last ones."""
        with self.e.loop(begin, end, totals) as (at, now):
            for number, axes in enumerate(points):
                total = self._combine(now[number], self._item(axes, at, self.scan.of.item))
                now[number] = self._store(axes, at, total)
        return now

    def _item(self, axes: Axes, at: Value, expr: Expr) -> Value:
        lanes = self.lanes_at(axes)
        value = Expressions(self.memory, {**axes, self.scan.of.axis: at}, lanes).value(expr)
        return self.e.broadcast(value, lanes.count if lanes else 1)

    def _store(self, axes: Axes, at: Value, total: Value) -> Value:
        here = Expressions(self.memory, {**axes, self.scan.of.axis: at}, self.lanes_at(axes))
        here.store(self.block.output, self.block.indices, total)
        return total

    def _combine(self, a: Value, b: Value) -> Value:
        return arithmetic.binary(self.e, self.scan.of.op, a, b, self.dtype)

    # --- a row of another axis at each step ---------------------------------------------------------------------------
    def _row_by_row(self, points: Sequence[Axes]) -> None:
        """Add some rows at once to the totals before them, which are read again where they were written."""
        (axes,) = points
        e, start = self.e, int_literal(0)
        with self.memory.caching():
            self._walk_row(axes, lambda here: self._store(here, start, self._item(here, start, self.scan.of.first)))
        rest = e.sub(self.length, 1)
        wide = STREAMED_ROWS if self.is_streamed else ROWS_AT_ONCE
        wide_end = e.add(e.binary("sub", rest, e.binary("urem", rest, wide)), 1)
        with e.loop(1, wide_end, step=wide) as (at, _):
            self._walk_row(axes, lambda here: self._add_rows(here, at, wide))
        with e.loop(wide_end, self.length) as (at, _):
            self._walk_row(axes, lambda here: self._add_rows(here, at, 1))

    @property
    def is_streamed(self) -> bool:
        """True where totals are stored past the caches."""
        return self.block.output in self.memory.streamed

    def _add_rows(self, axes: Axes, at: Value, count: int) -> None:
        before = Load(self.block.output, self.block.indices)
        total = self._item(axes, self.e.sub(at, 1), before)
        for row in range(count):
            here = self.e.add(at, row)
            total = self._combine(total, self._item(axes, here, self.scan.of.item))
            with self.memory.caching() if row == count - 1 else nullcontext():
                self._store(axes, here, total)

    def _walk_row(self, axes: Axes, step: Callable[[Axes], object]) -> None:
        """`step` for each vector of the row that begins where `axes` stand; the last one is moved back to its end."""
        e, plan = self.e, self.plan
        name, width = str(plan.vector), plan.lanes * self.scan.row
        begin, extent = axes[name], self.memory.dim(plan.extents[name])
        end = e.intrinsic("smin", e.add(begin, width), extent)
        with e.loop(begin, end, step=plan.lanes) as (at, _):
            step({**axes, name: at if plan.masked else e.intrinsic("smin", at, e.sub(extent, plan.lanes))})

    # --- lanes along the scanned axis ---------------------------------------------------------------------------------
    def _first_line(self, axes: Axes) -> Value:
        """Return where the second line of the totals begins, if the first one does where a row does. No address is
        asked: sums of floats, which depend on where vectors begin, would depend on it."""
        e, lanes = self.e, self.scan.lanes
        offset = self.memory.offset(self.block.output, self.block.indices)
        start = Expressions(self.memory, {**axes, self.scan.of.axis: int_literal(0)}).first(offset)
        lead = e.sub(lanes, e.binary("and", start, lanes - 1))
        return e.intrinsic("smin", lead, self.length)

    def _along_lanes(self, axes: Axes, begin: Value, first: Value) -> tuple[Value, list[Value]]:
        """Scan whole vectors from an element on; return where they end, and the total there."""
        e, lanes = self.e, self.scan.lanes
        rest = e.sub(self.length, begin)
        end = e.add(e.binary("and", rest, -lanes), begin)
        along = Lanes(self.scan.of.axis, lanes)
        with e.loop(begin, end, [e.broadcast(first, lanes)], lanes) as (at, carried):
            here = Expressions(self.memory, {**axes, self.scan.of.axis: at}, along)
            within = self._within(e.broadcast(here.value(self.scan.of.item), lanes))
            here.store(self.block.output, self.block.indices, self._combine(carried[0], within))
            # The chain from vector to vector is this one operation.
            carried[0] = self._combine(carried[0], e.shuffle(within, within, [lanes - 1] * lanes))
        return end, [e.extract(carried[0], 0)]

    def _within(self, items: Value) -> Value:
        """Return the running totals of the lanes: after the n-th round, of 2^n items (Hillis and Steele, 1986)."""
        lanes, step = self.scan.lanes, 1
        while step < lanes:
            order = [lane - step if lane >= step else lanes for lane in range(lanes)]
            items = self._combine(self.e.shuffle(items, self._neutral(), order), items)
            step *= 2
        return items

    def _neutral(self) -> Value:
        """Return what changes nothing, in all lanes. Of sums that is -0.0: 0.0 would turn -0.0 into 0.0, and LLVM moves
        lanes up beside zeros by an expansion, which takes several times as long as a permutation of two vectors."""
        element = neutral_element(self.scan.of.reducer, self.dtype)
        value = -0.0 if self.scan.of.op == "add" and dtypes.is_float(self.dtype) else element.value
        return self.e.broadcast(arithmetic.constant(value, element.dtype), self.scan.lanes)
