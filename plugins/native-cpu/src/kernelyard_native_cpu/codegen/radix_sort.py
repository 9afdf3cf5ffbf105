"""A stable sort of records, as a function of its own: by counting digits, or by counting ranks where there are few.

The sort by digits is LSD radix sort (Knuth, The Art of Computer Programming 3, 5.2.5): one pass counts the digits of
every byte of the keys, then a pass for each byte moves the records, the least significant byte first. A byte that is
the same in all keys takes no pass; what counts is how far a key is above the least one, so that keys of a small range
take few.
"""

from __future__ import annotations

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, int_literal, iota, registers
from kernelyard_native_cpu.codegen.sort_keys import Record, RecordLayout

DIGITS = 256  # of a byte
# Up to so many records, comparing each with all takes less time than the counters of all digits.
MOST_RANKED = 64

_START, _COUNTERS = registers("ptr", "start", "counters")
_CAPACITY, _COUNT = registers("i64", "capacity", "count")
_PARAMETERS = (_START, _CAPACITY, _COUNTERS, _COUNT)


def sort_function(layout: RecordLayout, lanes: int, caller: FunctionEmitter) -> str:
    """Return the name of `void sort(ptr start, i64 capacity, ptr counters, i64 count)`; its text is added to what the
    caller declares. lanes: records that are compared at once.

    It sorts `count` records from `start` on. Room for two times `capacity` records begins there; the sorted ones begin
    so many records behind `start` as the first of the counters then says. There are `counters_of` counters.
    """
    name = f"sort_records.{layout.key_type}"
    if name not in caller.declarations:
        e = FunctionEmitter(_PARAMETERS, caller.declarations)
        _Sort(e, layout, lanes).write()
        caller.declarations[name] = e.finish(name, is_internal=True)
    return name


def counters_of(layout: RecordLayout) -> int:
    """Return how many counters of 64 bits the sort needs."""
    return DIGITS * len(layout.digit_shifts)


class _Sort:
    def __init__(self, e: FunctionEmitter, layout: RecordLayout, lanes: int) -> None:
        self.e = e
        self.layout = layout
        self.lanes = lanes
        self.least = int_literal(0)
        self.other = e.element(_START, e.mul(_CAPACITY, layout.words), "i64")

    def write(self) -> None:
        e = self.e
        is_short = e.compare("sle", _COUNT, MOST_RANKED)
        (sorted_at,) = e.branch(is_short, self._by_ranks, self._by_digits)
        e.store(sorted_at, _COUNTERS)

    def _load(self, start: Value, at: Value, lanes: int = 1) -> Record:
        return self.layout.load(self.e, start, _CAPACITY, at, lanes)

    # --- few records --------------------------------------------------------------------------------------------------
    def _by_ranks(self) -> list[Value]:
        """Count for each record those that come before it: that is where it goes."""
        e = self.e
        with e.loop(0, _COUNT) as (at, _):
            record = self._load(_START, at)
            with e.loop(0, _COUNT, [_zeros(self.lanes)], self.lanes) as (first, ranks):
                before = e.binary("and", self._come_before(first, record, at), self._exist(first))
                ranks[0] = e.add(ranks[0], e.convert("zext", before, "i64"))
            rank = e.across_lanes("add", ranks[0])
            self.layout.store(e, self.other, _CAPACITY, rank, record)
        return [_CAPACITY]

    def _come_before(self, first: Value, record: Record, at: Value) -> Value:
        """Return which of the records from `first` on come before one."""
        e = self.e
        others = self._load(_START, first, self.lanes)
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
        first = self._load(_START, int_literal(0))
        source, target, is_moved = _START, self.other, int_literal(0)
        for number, shift in enumerate(self.layout.digit_shifts):
            counters = e.element(_COUNTERS, number * DIGITS, "i64")
            of_first = e.load(e.element(counters, self._digit(first, shift), "i64"), type_="i64")

            def move(source: Value, target: Value, moved: Value, counters: Value, shift: int) -> list[Value]:
                self._move(source, target, counters, shift)
                return [target, source, e.sub(_CAPACITY, moved)]

            now = source, target, is_moved
            source, target, is_moved = e.branch(
                e.compare("eq", of_first, _COUNT),
                lambda now=now: list(now),
                lambda now=now, counters=counters, shift=shift: move(*now, counters, shift),
            )
        return [is_moved]

    def _digit(self, record: Record, shift: int) -> Value:
        above = self.e.sub(record[0], self.least)
        return self.e.binary("and", self.e.binary("lshr", above, shift), DIGITS - 1)

    def _least_key(self) -> Value:
        """Return the least key, as it lies in the first word of a record."""
        e = self.e
        wide_end = e.binary("and", _COUNT, -self.lanes)
        ones = e.broadcast(int_literal(-1), self.lanes)
        with e.loop(0, wide_end, [ones], self.lanes, runs=True) as (at, least):
            least[0] = e.intrinsic("umin", least[0], e.load(e.element(_START, at, "i64"), self.lanes, type_="i64"))
        with e.loop(wide_end, _COUNT, [e.across_lanes("umin", least[0])]) as (at, rest):
            rest[0] = e.intrinsic("umin", rest[0], e.load(e.element(_START, at, "i64"), type_="i64"))
        return e.binary("and", rest[0], -1 << self.layout.digit_shifts[0])

    def _count_digits(self) -> None:
        e = self.e
        with e.loop(0, counters_of(self.layout), step=self.lanes, runs=True) as (at, _):
            e.store(_zeros(self.lanes), e.element(_COUNTERS, at, "i64"))
        with e.loop(0, _COUNT, runs=True) as (at, _):
            key = [e.load(e.element(_START, at, "i64"), type_="i64")]
            for number, shift in enumerate(self.layout.digit_shifts):
                counter = e.element(_COUNTERS, e.add(self._digit(key, shift), number * DIGITS), "i64")
                e.store(e.add(e.load(counter, type_="i64"), 1), counter)

    def _move(self, source: Value, target: Value, counters: Value, shift: int) -> None:
        """Write each record behind those of lesser digits, and of the same digit that came before it."""
        e = self.e
        with e.loop(0, DIGITS, [int_literal(0)], runs=True) as (digit, before):
            counter = e.element(counters, digit, "i64")
            count = e.load(counter, type_="i64")
            e.store(before[0], counter)
            before[0] = e.add(before[0], count)
        with e.loop(0, _COUNT, runs=True) as (at, _):
            record = self._load(source, at)
            counter = e.element(counters, self._digit(record, shift), "i64")
            place = e.load(counter, type_="i64")
            self.layout.store(e, target, _CAPACITY, place, record)
            e.store(e.add(place, 1), counter)


def _zeros(lanes: int) -> Value:
    return Value("zeroinitializer", "i64", lanes)
