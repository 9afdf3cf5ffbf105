"""Sorted rows: the places of a row's first elements in order, all of them or a few; or these elements alone.

Records of a key and a place fill a buffer, which is sorted. Where the row is longer than the buffer, only the wanted
ones stay; what follows in the row is compared with the last of them, and what comes before it is added, until the
buffer is full and is sorted again. A row of which few elements are wanted so is read once, and little of it is sorted.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.plugins.codegen_api import ComputeBlock
from kernelyard_llvm.values import Value, int_literal, iota
from kernelyard_native_cpu.codegen.compress import count_lanes, lane_bits
from kernelyard_native_cpu.codegen.expressions import Expressions, Lanes
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.codegen.radix_sort import sort_function
from kernelyard_native_cpu.codegen.sort_keys import (
    Record,
    Records,
    may_come_before,
    sort_key,
    value_of_key,
)
from kernelyard_native_cpu.codegen.vector_sort import vector_sort
from kernelyard_native_cpu.schedule.plan import Plan

Axes = dict[str, Value]
State = list[Value]  # how many records there are, and the value that a new one must come before
Finish = Callable[[Axes, Lanes | None, Value], None]  # what becomes of the places, or values, at some positions
_VECTORS_AT_ONCE = 4


class SortedRow:
    """Sorts one row, where `axes` stand; `finish` takes its places."""

    def __init__(self, memory: Memory, block: ComputeBlock, plan: Plan, axes: Axes) -> None:
        assert plan.sort is not None
        self.memory = memory
        self.e = memory.emitter
        self.block = block
        self.sort = plan.sort
        self.axes = axes
        (self.reduced,) = plan.reduce
        self.dtype = block.body.dtype
        self.descending = block.reducer == "argsort_descending"
        self.length = memory.dim(plan.extents[self.reduced])
        self.wanted = memory.dim(self.sort.wanted)
        self.capacity = memory.dim(self.sort.records.shape[-1])
        self.records = Records(self.e, self.sort.layout, self.capacity)
        self.start = memory.pointers[self.sort.records]
        self.counters = memory.pointers[self.sort.counters]
        words = self.e.mul(self.capacity, self.sort.layout.words)
        self.other = self.e.element(self.start, words, self.records.word_type)

    def run(self, finish: Finish) -> None:
        """Sort the row, and hand its first places on."""
        e = self.e
        filled = e.intrinsic("smin", self.length, self.memory.dim(self.sort.fill))
        self._each(int_literal(0), filled, 1, self._fill)
        if self.sort.is_whole:
            sorted_at = self._sort_records(filled)
        else:
            is_longer = e.compare("slt", filled, self.length)
            (count,) = e.branch(is_longer, lambda: [self._select(filled)], lambda: [filled])
            sorted_at = self._sort_records(count)
        self._finish(sorted_at, finish)

    # --- records ------------------------------------------------------------------------------------------------------
    def _value(self, place: Value, lanes: int) -> Value:
        """Return so many elements of the row from a place on."""
        along = Lanes(self.reduced, lanes) if lanes > 1 else None
        expressions = Expressions(self.memory, {**self.axes, self.reduced: place}, along)
        return self.e.broadcast(expressions.value(self.block.body), lanes)

    def _key(self, value: Value) -> Value:
        has_places = self.sort.layout.has_places
        return sort_key(self.e, value, self.dtype, self.memory.has_half, has_places, descending=self.descending)

    def _record(self, place: Value, lanes: int) -> Record:
        places = self.e.add(place, iota(lanes)) if lanes > 1 else place
        return self.records.record(self._key(self._value(place, lanes)), places)

    def _each(self, begin: Value, end: Value, vectors: int, step: Callable[[Value, int], None]) -> None:
        """`step(place, lanes)` for all places from one to another: whole vectors, then what is left."""
        width = self.sort.lanes * vectors
        wide_end = self._wide_end(begin, end, width)
        with self.e.loop(begin, wide_end, step=width) as (place, _):
            step(place, self.sort.lanes)
        with self.e.loop(wide_end, end) as (place, _):
            step(place, 1)

    def _wide_end(self, begin: Value, end: Value, width: int) -> Value:
        count = self.e.sub(end, begin)
        return self.e.add(begin, self.e.binary("and", count, -width))

    def _fill(self, place: Value, lanes: int) -> None:
        self.records.store(self.start, place, self._record(place, lanes))

    def _sort_records(self, count: Value) -> Value:
        """Sort the records; return where they begin then."""
        e, sort = self.e, self.sort
        if sort.compression and sort.in_vectors:
            vector_sort(self.records.word_type, sort.compression, self.start, self.other, count, e)
            return self.start
        function = sort_function(sort.layout, sort.result_lanes, sort.room, e)
        e.line(e.call(function, "void", self.start, self.other, self.capacity, self.counters, count))
        is_moved = e.compare("ne", e.load(self.counters, type_="i64"), 0)
        return e.select(is_moved, self.other, self.start)

    # --- a few of many ------------------------------------------------------------------------------------------------
    def _select(self, filled: Value) -> Value:
        """Go through the rest of the row; return how many records there are in the end."""
        e, width = self.e, self.sort.lanes * _VECTORS_AT_ONCE
        wide_end = self._wide_end(filled, self.length, width)
        with e.loop(filled, wide_end, self._cut(filled), width) as (place, state):
            state[:] = self._wide_step(place, list(state))
        with e.loop(wide_end, self.length, state) as (place, state):
            state[:] = self._narrow_step(place, list(state))
        return state[0]

    def _cut(self, count: Value) -> State:
        """Sort the records, and keep those that are wanted."""
        e = self.e
        start = self._sort_records(count)
        last = e.intrinsic("smax", e.sub(self.wanted, 1), 0)
        with e.loop(0, self.wanted) as (at, _):
            self.records.store(self.start, at, self.records.load(start, at))
        key = self.records.key(self.records.load(start, last))
        return [self.wanted, value_of_key(e, key, self.dtype, self.memory.has_half, descending=self.descending)]

    def _wide_step(self, place: Value, state: State) -> State:
        """Compare some vectors with the last record at once; only where one has something to add, look closer."""
        e, lanes = self.e, self.sort.lanes
        found: Value | None = None
        for number in range(_VECTORS_AT_ONCE):
            value = self._value(e.add(place, number * lanes), lanes)
            chosen = may_come_before(e, value, state[1], self.dtype, descending=self.descending)
            found = chosen if found is None else e.binary("or", found, chosen)
        assert found is not None
        any_found = e.compare("ne", lane_bits(e, found), 0)
        return e.branch(any_found, lambda: self._add_vectors(place, state), lambda: state)

    def _add_vectors(self, place: Value, state: State) -> State:
        e, lanes = self.e, self.sort.lanes
        with e.loop(0, _VECTORS_AT_ONCE, state, runs=True) as (number, now):
            here = e.add(place, e.mul(number, lanes))
            less = e.compare("ult", self._key(self._value(here, lanes)), self._key(now[1]))
            self.records.store_chosen(self.start, now[0], self._record(here, lanes), less, self.sort.compression)
            now[:] = self._cut_if_full([e.add(now[0], count_lanes(e, less)), now[1]])
        return now

    def _narrow_step(self, place: Value, state: State) -> State:
        e = self.e

        def add() -> State:
            self.records.store(self.start, state[0], self._record(place, 1))
            return self._cut_if_full([e.add(state[0], 1), state[1]])

        return e.branch(e.compare("ult", self._key(self._value(place, 1)), self._key(state[1])), add, lambda: state)

    def _cut_if_full(self, state: State) -> State:
        e = self.e
        is_full = e.compare("sgt", state[0], self.memory.dim(self.sort.room))
        return e.branch(is_full, lambda: self._cut(state[0]), lambda: state)

    # --- the result ---------------------------------------------------------------------------------------------------
    def _finish(self, start: Value, finish: Finish) -> None:
        e, position, lanes = self.e, self.sort.position, self.sort.result_lanes
        if position is None:
            assert self.block.arg is not None
            at = Expressions(self.memory, self.axes).value(self.block.arg)
            self._finish_at(start, at, 1, lambda place: finish(self.axes, None, place))
            return
        wide_end = self._wide_end(int_literal(0), self.wanted, lanes)
        with e.loop(0, wide_end, step=lanes) as (at, _):
            along, here = Lanes(position, lanes), {**self.axes, position: at}
            self._finish_at(start, at, lanes, lambda place: finish(here, along, place))
        with e.loop(wide_end, self.wanted) as (at, _):
            one = {**self.axes, position: at}
            self._finish_at(start, at, 1, lambda place: finish(one, None, place))

    def _finish_at(self, start: Value, at: Value, lanes: int, finish: Callable[[Value], None]) -> None:
        record = self.records.load(start, at, lanes)
        if self.sort.layout.has_places:
            finish(self.records.place(record))
            return
        key = self.records.key(record)
        finish(value_of_key(self.e, key, self.dtype, self.memory.has_half, descending=self.descending))
