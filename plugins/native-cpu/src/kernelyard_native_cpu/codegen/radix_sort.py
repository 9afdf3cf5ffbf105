"""A stable sort of records, as a function of its own: by counting digits, or by counting ranks where there are few.

The sort by digits is LSD radix sort (Knuth, The Art of Computer Programming 3, 5.2.5): one pass counts the digits of
every byte of the keys, then a pass for each byte moves the records, the least significant byte first. A byte that is
the same in all keys takes no pass; what counts is how far a key is above the least one, so that keys of a small range
take few. More records than the near caches hold are first parted by the leading bits of that, and then sorted part by
part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kernelyard.dims import Dim
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, int_literal, iota, registers
from kernelyard_native_cpu.codegen.sort_keys import Record, Records
from kernelyard_native_cpu.schedule.record_layout import DIGITS, PART_BITS, RecordLayout

# Up to so many records, comparing each with all takes less time than the counters of all digits.
MOST_RANKED = 64
# From so many records on they are parted.
LEAST_PARTED = 1 << 18
# What counts is how far a key is above the least: that is seldom more than so many bytes.
_LOWER_BYTES = 4

_START, _OTHER, _COUNTERS = registers("ptr", "start", "other", "counters")
_CAPACITY, _COUNT = registers("i64", "capacity", "count")
_PARAMETERS = (_START, _OTHER, _CAPACITY, _COUNTERS, _COUNT)


def sort_function(layout: RecordLayout, lanes: int, most: Dim, caller: FunctionEmitter) -> str:
    """Return the name of `void sort(ptr start, ptr other, i64 capacity, ptr counters, i64 count)`; its text is added to
    what the caller declares. lanes: records that are compared at once; most: that are sorted.

    It sorts `count` records from `start` on, with as much room from `other` on; `capacity` is that of the layout. The
    first of the counters then says where the sorted ones are: 0 at `start`, 1 at `other`. The layout says how many
    counters there are.
    """
    name = _function("sort_records", layout, lanes, caller, _Sort.write)
    if isinstance(most, int) and most < LEAST_PARTED:
        return name
    return _function("part_records", layout, lanes, caller, _Sort.write_in_parts)


def _function(
    prefix: str, layout: RecordLayout, lanes: int, caller: FunctionEmitter, write: Callable[[_Sort], None]
) -> str:
    name = f"{prefix}.i{layout.key_bits}"
    if name not in caller.declarations:
        e = FunctionEmitter(_PARAMETERS, caller.declarations)
        write(_Sort(e, layout, lanes))
        caller.declarations[name] = e.finish(name, is_internal=True)
    return name


class _Sort:
    def __init__(self, e: FunctionEmitter, layout: RecordLayout, lanes: int) -> None:
        self.e = e
        self.layout = layout
        self.records = Records(e, layout, _CAPACITY)
        self.lanes = lanes
        self.least = int_literal(0)

    def write(self) -> None:
        """Sort a few records, or as many as the caches hold."""
        e = self.e
        is_short = e.compare("sle", _COUNT, MOST_RANKED)
        (sorted_at,) = e.branch(is_short, self._by_ranks, self._by_digits)
        e.store(sorted_at, _COUNTERS)

    # --- more records than the caches hold ----------------------------------------------------------------------------
    def write_in_parts(self) -> None:
        """Part many records, and sort the parts; sort few at once."""
        e = self.e
        is_large = e.compare("sge", _COUNT, LEAST_PARTED)
        with e.when(is_large):
            self._sort_parts()
        with e.when(e.binary("xor", is_large, 1)):
            self._call(_START, _OTHER, _COUNT)

    def _call(self, start: Value, other: Value, count: Value) -> None:
        arguments = start, other, _CAPACITY, _COUNTERS, count
        self.e.line(self.e.call(f"sort_records.{self.records.key_type}", "void", *arguments))

    def _sort_parts(self) -> None:
        e = self.e
        self.least, most = self._least_key(), self._extreme_word("umax")
        width = e.sub(64, e.intrinsic("ctlz", e.sub(most, self.least), int_literal(0, "i1")))
        shift = e.intrinsic("smax", e.sub(width, PART_BITS), 0)
        counters = e.element(_COUNTERS, DIGITS * len(self.layout.digit_shifts), "i64")

        def part_of(at: Value) -> Value:
            return e.binary("lshr", e.sub(e.load(e.element(_START, at, "i64"), type_="i64"), self.least), shift)

        self._clear(counters, 1 << PART_BITS)
        with e.loop(0, _COUNT, runs=True) as (at, _):
            self._next_place(counters, part_of(at))
        self._turn_to_places(counters, 1 << PART_BITS)
        with e.loop(0, _COUNT, runs=True) as (at, _):
            place = self._next_place(counters, part_of(at))
            self.records.store(_OTHER, place, self.records.load(_START, at))
        with e.loop(0, 1 << PART_BITS, [int_literal(0)], runs=True) as (part, begin):
            end = e.load(e.element(counters, part, "i64"), type_="i64")
            count = e.sub(end, begin[0])
            with e.when(e.compare("sgt", count, 0)):
                here, there = e.element(_OTHER, begin[0], "i64"), e.element(_START, begin[0], "i64")
                self._call(here, there, count)
                with e.when(e.compare("eq", e.load(_COUNTERS, type_="i64"), 0)), e.loop(0, count) as (at, _):
                    self.records.store(there, at, self.records.load(here, at))
            begin[0] = end
        e.store(int_literal(0), _COUNTERS)

    # --- few records --------------------------------------------------------------------------------------------------
    def _by_ranks(self) -> list[Value]:
        """Count for each record those that come before it: that is where it goes."""
        e = self.e
        with e.loop(0, _COUNT) as (at, _):
            record = self.records.load(_START, at)
            with e.loop(0, _COUNT, [_zeros(self.lanes)], self.lanes) as (first, ranks):
                before = e.binary("and", self._come_before(first, record, at), self._exist(first))
                ranks[0] = e.add(ranks[0], e.convert("zext", before, "i64"))
            rank = e.across_lanes("add", ranks[0])
            self.records.store(_OTHER, rank, record)
        return [int_literal(1)]

    def _come_before(self, first: Value, record: Record, at: Value) -> Value:
        """Return which of the records from `first` on come before one."""
        e = self.e
        others = self.records.load(_START, first, self.lanes)
        less = e.compare("ult", others[0], record[0])
        if self.layout.words == 1:
            return less  # the place is part of the word
        earlier = e.compare("slt", e.add(iota(self.lanes), first), at)
        return e.binary("or", less, e.binary("and", e.compare("eq", others[0], record[0]), earlier))

    def _exist(self, first: Value) -> Value:
        return self.e.lanes_below(self.lanes, self.e.sub(_COUNT, first))

    # --- many records -------------------------------------------------------------------------------------------------
    def _by_digits(self) -> list[Value]:
        e = self.e
        self.least = self._least_key()
        self._count_digits()
        first = self.records.load(_START, int_literal(0))
        source, target, is_moved = _START, _OTHER, int_literal(0)
        for number, shift in enumerate(self.layout.digit_shifts):
            counters = e.element(_COUNTERS, number * DIGITS, "i64")
            of_first = e.load(e.element(counters, self._digit(first, shift), "i64"), type_="i64")
            source, target, is_moved = e.branch(
                e.compare("eq", of_first, _COUNT),
                partial(list, (source, target, is_moved)),
                partial(self._move_records, source, target, is_moved, counters, shift),
            )
        return [is_moved]

    def _digit(self, record: Record, shift: int) -> Value:
        above = self.e.sub(record[0], self.least)
        return self.e.binary("and", self.e.binary("lshr", above, shift), DIGITS - 1)

    def _least_key(self) -> Value:
        """Return the least key, as it lies in the first word of a record."""
        return self.e.binary("and", self._extreme_word("umin"), -1 << self.layout.digit_shifts[0])

    def _extreme_word(self, kind: str) -> Value:
        """Return the least or the greatest of the records' first words."""
        e = self.e
        wide_end = e.binary("and", _COUNT, -self.lanes)
        start = e.broadcast(int_literal(-1 if kind == "umin" else 0), self.lanes)
        with e.loop(0, wide_end, [start], self.lanes, runs=True) as (at, found):
            found[0] = e.intrinsic(kind, found[0], e.load(e.element(_START, at, "i64"), self.lanes, type_="i64"))
        with e.loop(wide_end, _COUNT, [e.across_lanes(kind, found[0])]) as (at, rest):
            rest[0] = e.intrinsic(kind, rest[0], e.load(e.element(_START, at, "i64"), type_="i64"))
        return rest[0]

    def _count_digits(self) -> None:
        """Count the digits of all keys; those of the upper bytes only where some key has any there."""
        e, shifts = self.e, self.layout.digit_shifts
        self._clear(_COUNTERS, DIGITS * len(shifts))
        self._count(0, shifts[:_LOWER_BYTES])
        upper = shifts[_LOWER_BYTES:]
        if not upper:
            return
        range_ = e.sub(self._extreme_word("umax"), self.least)
        is_wide = e.compare("ne", e.binary("lshr", range_, upper[0]), 0)
        with e.when(is_wide):
            self._count(_LOWER_BYTES, upper)
        with e.when(e.binary("xor", is_wide, 1)):
            for number in range(_LOWER_BYTES, len(shifts)):
                e.store(_COUNT, e.element(_COUNTERS, number * DIGITS, "i64"))

    def _count(self, first: int, shifts: Sequence[int]) -> None:
        """Count the digits at some shifts, whose counters begin with those of digit number `first`."""
        e = self.e
        with e.loop(0, _COUNT, runs=True) as (at, _):
            key = [e.load(e.element(_START, at, "i64"), type_="i64")]
            for number, shift in enumerate(shifts, first):
                counter = e.element(_COUNTERS, e.add(self._digit(key, shift), number * DIGITS), "i64")
                e.store(e.add(e.load(counter, type_="i64"), 1), counter)

    def _move_records(self, source: Value, target: Value, is_moved: Value, counters: Value, shift: int) -> list[Value]:
        """Write each record behind those of lesser digits, and of the same digit that came before it; return where the
        records are, where there is room, and whether they are not where they were at first.
        """
        e = self.e
        self._turn_to_places(counters, DIGITS)
        with e.loop(0, _COUNT, runs=True) as (at, _):
            record = self.records.load(source, at)
            place = self._next_place(counters, self._digit(record, shift))
            self.records.store(target, place, record)
        return [target, source, e.sub(1, is_moved)]

    # --- counters -----------------------------------------------------------------------------------------------------
    def _clear(self, counters: Value, count: int) -> None:
        with self.e.loop(0, count, step=self.lanes, runs=True) as (at, _):
            self.e.store(_zeros(self.lanes), self.e.element(counters, at, "i64"))

    def _turn_to_places(self, counters: Value, count: int) -> None:
        """Turn numbers of records into the places of the first ones."""
        e = self.e
        with e.loop(0, count, [int_literal(0)], runs=True) as (at, before):
            counter = e.element(counters, at, "i64")
            here = e.load(counter, type_="i64")
            e.store(before[0], counter)
            before[0] = e.add(before[0], here)

    def _next_place(self, counters: Value, at: Value) -> Value:
        """Return what a counter holds, and count one more."""
        counter = self.e.element(counters, at, "i64")
        place = self.e.load(counter, type_="i64")
        self.e.store(self.e.add(place, 1), counter)
        return place


def _zeros(lanes: int) -> Value:
    return Value("zeroinitializer", "i64", lanes)
