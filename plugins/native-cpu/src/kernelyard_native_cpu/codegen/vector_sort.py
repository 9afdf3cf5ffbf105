"""A sort of unsigned integers in vectors: quicksort, and sorting networks in registers where few are left.

A part is divided by a pivot: lanes that are not greater are compressed to its front, where they have been read already,
and the others to spare memory, from which they are copied behind. The pivot is the median of medians of samples; a part
that was divided too often is divided in the middle of its range, which ends after a step for each bit.

In a network the n-th of the sorted integers is in lane n // rows of row n % rows: most comparisons then are of whole
registers. It is Batcher's bitonic sort, whose merges begin with a comparison of mirrored places, so that all parts are
ascending (Batcher, Sorting networks and their applications, 1968).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Value, int_literal, registers
from kernelyard_native_cpu.codegen.compress import compress, count_lanes
from kernelyard_native_cpu.machine import Compression

_START, _SPARE = registers("ptr", "start", "spare")
_COUNT, _STEPS = registers("i64", "count", "steps")
_UNROLL = 4
_SAMPLES = 9
# Divisions by sampled pivots that a part may be the result of, for each bit of the count.
STEPS_PER_BIT = 2


def vector_sort(
    word: str, compression: Compression, start: Value, spare: Value, count: Value, e: FunctionEmitter
) -> None:
    """Emit a sort of `count` integers of type `word` from an address on; there is spare memory for as many and a
    vector.
    """
    name = f"sort_words.{word}"
    if name not in e.declarations:
        _Writer(word, compression, e.declarations).write(name)
    steps = e.mul(e.sub(64, e.intrinsic("ctlz", count, int_literal(0, "i1"))), STEPS_PER_BIT)
    e.line(e.call(name, "void", start, spare, count, steps))


class _Writer:
    """Writes the functions of one type of integers; `most_rows` vectors are sorted in registers."""

    def __init__(self, word: str, compression: Compression, declarations: dict[str, str]) -> None:
        self.word = word
        self.instruction = compression.instruction
        self.lanes = compression.bits // BITS[word]
        self.most_rows = 16 if compression.bits == 512 else 8
        self.declarations = declarations

    def write(self, name: str) -> None:
        """Add the sort to the declarations, and what it calls."""
        e = FunctionEmitter((_START, _SPARE, _COUNT, _STEPS), self.declarations)
        self.declarations[name] = ""  # it calls itself
        self.declarations[self._partition_name] = self._partition()
        is_short = e.compare("sle", _COUNT, self.most_rows * self.lanes)
        e.branch(is_short, lambda: self._sort_few(e, 1), lambda: self._divide(e, name))
        self.declarations[name] = e.finish(name, is_internal=True)

    def _at(self, e: FunctionEmitter, start: Value, offset: Value) -> Value:
        return e.element(start, offset, self.word)

    def _compress(self, e: FunctionEmitter, vector: Value, mask: Value) -> Value:
        return compress(e, vector, mask, self.instruction)

    def _load(self, e: FunctionEmitter, start: Value, offset: Value) -> Value:
        return e.load(self._at(e, start, offset), self.lanes, type_=self.word)

    # --- few ----------------------------------------------------------------------------------------------------------
    def _sort_few(self, e: FunctionEmitter, rows: int) -> list[Value]:
        """Call the network of as few rows as hold all."""
        name = f"sort_{rows}_rows.{self.word}"
        if name not in self.declarations:
            self.declarations[name] = self._network(name, rows)
        if rows == self.most_rows:
            e.line(e.call(name, "void", _START, _COUNT))
        else:
            is_enough = e.compare("sle", _COUNT, rows * self.lanes)
            e.branch(is_enough, lambda: self._call_network(e, name), lambda: self._sort_few(e, 2 * rows))
        return []

    def _call_network(self, e: FunctionEmitter, name: str) -> list[Value]:
        e.line(e.call(name, "void", _START, _COUNT))
        return []

    def _network(self, name: str, rows: int) -> str:
        e = FunctionEmitter((_START, _COUNT), self.declarations)
        masks = [e.lanes_below(self.lanes, e.sub(_COUNT, row * self.lanes)) for row in range(rows)]
        places = [self._at(e, _START, int_literal(row * self.lanes)) for row in range(rows)]
        vectors: list[Value] = []
        for place, mask in zip(places, masks, strict=True):
            loaded = e.load(place, self.lanes, mask, self.word)
            vectors.append(e.select(mask, loaded, e.broadcast(int_literal(-1, self.word), self.lanes)))
        for place, mask, vector in zip(places, masks, _Network(e, rows, self.lanes).sort(vectors), strict=True):
            e.store(vector, place, mask)
        return e.finish(name, is_internal=True)

    # --- many ---------------------------------------------------------------------------------------------------------
    def _divide(self, e: FunctionEmitter, name: str) -> list[Value]:
        """Divide by a pivot, and sort both parts; where nothing is greater, part off what is equal."""
        (pivot,) = e.branch(e.compare("sgt", _STEPS, 0), lambda: [self._sample_pivot(e)], lambda: [self._middle(e)])
        left = self._split_at_pivot(e, pivot)
        rest, steps = e.sub(_COUNT, left), e.sub(_STEPS, 1)

        def part_off() -> list[Value]:
            with e.when(e.compare("ne", pivot, 0)):
                e.line(e.call(name, "void", _START, _SPARE, self._split_at_pivot(e, e.sub(pivot, 1)), steps))
            return []

        def sort_both() -> list[Value]:
            e.line(e.call(name, "void", _START, _SPARE, left, steps))
            e.line(e.call(name, "void", self._at(e, _START, left), _SPARE, rest, steps))
            return []

        e.branch(e.compare("eq", rest, 0), part_off, sort_both)
        return []

    def _split_at_pivot(self, e: FunctionEmitter, pivot: Value) -> Value:
        """Divide; return how many are not greater than the pivot."""
        e.line(e.call(self._partition_name, "void", _START, _SPARE, _COUNT, pivot))
        return e.load(_SPARE, type_="i64")

    def _sample_pivot(self, e: FunctionEmitter) -> Value:
        """Return the median of some lanes, each of which is a median of medians of three."""
        step = e.binary("udiv", e.sub(_COUNT, self.lanes), _SAMPLES - 1)
        vectors = [self._load(e, _START, e.mul(step, number)) for number in range(_SAMPLES)]
        while len(vectors) > 1:
            vectors = [_median(e, *vectors[n : n + 3]) for n in range(0, len(vectors), 3)]
        return e.extract(_Network(e, 1, self.lanes).sort(vectors)[0], self.lanes // 2)

    def _middle(self, e: FunctionEmitter) -> Value:
        """Return the middle between the least and the greatest."""
        ends = self._load(e, _START, int_literal(0))
        last = e.sub(_COUNT, self.lanes)
        with e.loop(0, last, [ends, ends], self.lanes, runs=True) as (at, found):
            here = self._load(e, _START, at), self._load(e, _START, last)
            for number, kind in enumerate(("umin", "umax")):
                for vector in here:
                    found[number] = e.intrinsic(kind, found[number], vector)
        least, most = e.across_lanes("umin", found[0]), e.across_lanes("umax", found[1])
        return e.add(least, e.binary("lshr", e.sub(most, least), 1))

    @property
    def _partition_name(self) -> str:
        return f"divide_words.{self.word}"

    def _partition(self) -> str:
        """Return the function that divides by a pivot, and writes to spare memory how many are not greater."""
        pivot = Value("%pivot", self.word)
        e = FunctionEmitter((_START, _SPARE, _COUNT, pivot), self.declarations)
        lanes = self.lanes
        wide_end = e.binary("and", _COUNT, -lanes * _UNROLL)
        with e.loop(0, wide_end, [int_literal(0)], lanes * _UNROLL) as (at, left):
            vectors = [self._load(e, _START, e.add(at, lanes * n)) for n in range(_UNROLL)]
            for number, vector in enumerate(vectors):
                mask = e.compare("ule", vector, pivot)
                right = e.sub(e.add(at, lanes * number), left[0])
                e.store(self._compress(e, vector, mask), self._at(e, _START, left[0]))
                e.store(self._compress(e, vector, e.binary("xor", mask, 1)), self._at(e, _SPARE, right))
                left[0] = e.add(left[0], count_lanes(e, mask))
        with e.loop(wide_end, _COUNT, left, lanes) as (at, left):
            exists = e.lanes_below(lanes, e.sub(_COUNT, at))
            vector = e.load(self._at(e, _START, at), lanes, exists, self.word)
            mask = e.binary("and", exists, e.compare("ule", vector, pivot))
            greater = e.binary("and", exists, e.binary("xor", mask, 1))
            count = count_lanes(e, mask)
            e.store(self._compress(e, vector, greater), self._at(e, _SPARE, e.sub(at, left[0])))
            e.store(self._compress(e, vector, mask), self._at(e, _START, left[0]), e.lanes_below(lanes, count))
            left[0] = e.add(left[0], count)
        self._copy(e, self._at(e, _START, left[0]), e.sub(_COUNT, left[0]))
        e.store(left[0], _SPARE)
        return e.finish(self._partition_name, is_internal=True)

    def _copy(self, e: FunctionEmitter, target: Value, count: Value) -> None:
        """Copy as many integers from spare memory."""
        wide_end = e.binary("and", count, -self.lanes)
        with e.loop(0, wide_end, step=self.lanes) as (at, _):
            e.store(self._load(e, _SPARE, at), self._at(e, target, at))
        mask = e.lanes_below(self.lanes, e.sub(count, wide_end))
        e.store(self._load(e, _SPARE, wide_end), self._at(e, target, wide_end), mask)


def _median(e: FunctionEmitter, a: Value, b: Value, c: Value) -> Value:
    low, high = e.intrinsic("umin", a, b), e.intrinsic("umax", a, b)
    return e.intrinsic("umax", low, e.intrinsic("umin", high, c))


class _Network:
    """Bitonic sort of `rows` vectors; place n is in lane n // rows of row n % rows."""

    def __init__(self, e: FunctionEmitter, rows: int, lanes: int) -> None:
        self.e = e
        self.rows = rows
        self.lanes = lanes

    def sort(self, vectors: Sequence[Value]) -> list[Value]:
        """Return the lanes of all vectors in ascending order, as they lie in memory."""
        now, length = list(vectors), 2
        while length <= self.rows * self.lanes:
            now = self._compare_mirrored(now, length)
            distance = length // 4
            while distance:
                now = self._compare_apart(now, distance)
                distance //= 2
            length *= 2
        return self.e.transpose(now)

    def _compare_mirrored(self, now: list[Value], length: int) -> list[Value]:
        """Compare the places of each part of some length with those that mirror them."""
        if length <= self.rows:
            return self._compare_rows(now, [row ^ (length - 1) for row in range(self.rows)])
        mirror = length // self.rows - 1  # of lanes; rows are all mirrored
        order = [lane ^ mirror for lane in range(self.lanes)]
        is_low = [lane < lane ^ mirror for lane in range(self.lanes)]
        result = list(now)
        for row in range(max(self.rows // 2, 1)):
            other = self.rows - 1 - row
            partner = self.e.shuffle(now[other], now[other], order)
            less, more = self._order(now[row], partner)
            result[row] = self._blend(less, more, is_low)
            if other != row:
                turned = self._blend(more, less, is_low)
                result[other] = self.e.shuffle(turned, turned, order)
        return result

    def _compare_apart(self, now: list[Value], distance: int) -> list[Value]:
        """Compare places of which one is so much farther than the other."""
        if distance < self.rows:
            return self._compare_rows(now, [row ^ distance for row in range(self.rows)])
        step = distance // self.rows
        is_low = [lane < lane ^ step for lane in range(self.lanes)]
        if self.rows == 1:
            partner = self.e.shuffle(now[0], now[0], [lane ^ step for lane in range(self.lanes)])
            return [self._blend(*self._order(now[0], partner), is_low)]
        return [vector for n in range(0, self.rows, 2) for vector in self._compare_lanes(now[n], now[n + 1], step)]

    def _compare_lanes(self, a: Value, b: Value, step: int) -> tuple[Value, Value]:
        """Compare lanes of two vectors: the lower ones of both with the upper ones of both."""
        # The lower lanes of `b` stand where the upper ones of `a` were, and the other way round.
        low = [lane if not lane & step else self.lanes + (lane ^ step) for lane in range(self.lanes)]
        high = [lane ^ step if not lane & step else self.lanes + lane for lane in range(self.lanes)]
        less, more = self._order(self.e.shuffle(a, b, low), self.e.shuffle(a, b, high))
        return self.e.shuffle(less, more, low), self.e.shuffle(less, more, high)

    def _compare_rows(self, now: list[Value], partners: Sequence[int]) -> list[Value]:
        result = list(now)
        for row, other in enumerate(partners):
            if row < other:
                result[row], result[other] = self._order(now[row], now[other])
        return result

    def _order(self, a: Value, b: Value) -> tuple[Value, Value]:
        return self.e.intrinsic("umin", a, b), self.e.intrinsic("umax", a, b)

    def _blend(self, a: Value, b: Value, first: Sequence[bool]) -> Value:
        order = [lane if chosen else self.lanes + lane for lane, chosen in enumerate(first)]
        return self.e.shuffle(a, b, order)
