"""Memory planning: offsets of buffers in one arena, where buffers with disjoint lifetimes share bytes.

Minimizing the arena is NP-hard (dynamic storage allocation), but the peak of live bytes is a lower bound. Greedy orders
nearly always reach it; where none comes near, the best order is improved by local search, for as long as the bytes that
it may save justify the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.memory import align

NEAR = 1.02  # times the lower bound: close enough to end the search
MAX_CHANGES = 400
# The budget of the local search in comparisons of two buffers: a tenth of a second at most. A comparison takes as long
# as the system takes to zero a few hundred bytes, so it is only worth making if it may save more than that.
MAX_COMPARISONS = 400_000
BYTES_PER_COMPARISON = 256
SEARCH_AGAIN = 2  # search again once the lower bound has grown by this factor since the last search


class Lifetime(NamedTuple):
    """A buffer of `nbytes` that is written first at time `first` and read last at time `last`, both included."""

    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Return True when both exist at some time."""
        return self.first <= other.last and other.first <= self.last


class MemoryPlan(NamedTuple):
    """Offsets of the buffers in one arena of `nbytes`."""

    offsets: tuple[int, ...]
    nbytes: int


def least_nbytes(lifetimes: Sequence[Lifetime]) -> int:
    """Return the peak of live bytes: the lower bound of the arena's size.

    Example:
        >>> least_nbytes([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
        128
    """
    changes: dict[int, int] = {}
    for lifetime in lifetimes:
        changes[lifetime.first] = changes.get(lifetime.first, 0) + align(lifetime.nbytes)
        changes[lifetime.last + 1] = changes.get(lifetime.last + 1, 0) - align(lifetime.nbytes)
    living = most = 0
    for time in sorted(changes):
        living += changes[time]
        most = max(most, living)
    return most


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Return aligned offsets such that buffers with overlapping lifetimes do not share bytes.

    The same lifetimes always give the same plan.

    Example:
        >>> plan_memory([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
        MemoryPlan(offsets=(0, 64, 0), nbytes=128)
    """
    return MemoryPlanner().plan(lifetimes)


class MemoryPlanner:
    """Plans the memory of one program for one set of sizes after the other; may be used from many threads.

    Buffers whose sizes change together mostly fit in the same order: the order of the last plan is tried first. It is
    taken where it comes near the lower bound, and where it wastes no larger part of an arena that is not much larger.

    Example:
        >>> planner = MemoryPlanner()
        >>> planner.plan([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)]).nbytes
        128
        >>> planner.plan([Lifetime(640, 0, 1), Lifetime(640, 1, 2), Lifetime(64, 2, 3)]).nbytes
        1280
    """

    def __init__(self) -> None:
        self._last: _LastPlan | None = None

    def plan(self, lifetimes: Sequence[Lifetime]) -> MemoryPlan:
        """Plan like `plan_memory`, but reuse the order of an earlier plan where it suffices."""
        spans = tuple([(lifetime.first, lifetime.last) for lifetime in lifetimes])
        last = self._last if self._last is not None and self._last.spans == spans else None
        packing = _Packing(lifetimes, last.neighbours if last else neighbours_of(spans))
        least = least_nbytes(lifetimes)
        best = packing.place(last.order) if last else None
        if last is None or best is None or not last.suffices(best.nbytes, least):
            best = packing.best(least, best)
            self._last = _LastPlan(spans, packing.neighbours, best.order, best.nbytes, least)
        return MemoryPlan(tuple(best.offsets), best.nbytes)


class _LastPlan(NamedTuple):
    """The last search of a planner: an order, and the arena that it gave, of `least` bytes at best."""

    spans: tuple[tuple[int, int], ...]
    neighbours: list[list[int]]
    order: list[int]
    nbytes: int
    least: int

    def suffices(self, nbytes: int, least: int) -> bool:
        """Tell if another search is not worth its time for an arena that this order makes so large."""
        wastes_no_more = nbytes * self.least <= self.nbytes * least
        return nbytes <= NEAR * least or (wastes_no_more and least <= SEARCH_AGAIN * self.least)


class _Placed(NamedTuple):
    order: list[int]
    offsets: list[int]
    nbytes: int


class _Packing:
    """Best-fit packing of buffers (by index) in a given order: each goes into the tightest gap that is left."""

    def __init__(self, lifetimes: Sequence[Lifetime], neighbours: list[list[int]]) -> None:
        self._lifetimes = lifetimes
        self._sizes = [align(lifetime.nbytes) for lifetime in lifetimes]
        self.neighbours = neighbours

    def best(self, least: int, known: _Placed | None) -> _Placed:
        """Return the best plan found. least: the lower bound in bytes. known: a plan to start from."""
        enough = NEAR * least
        best = known
        for order in self.first_orders():
            placed = self.place(order)
            best = placed if best is None or placed.nbytes < best.nbytes else best
            if best.nbytes <= enough:
                return best
        assert best is not None
        return self.improve(best, enough, int(best.nbytes - least) // BYTES_PER_COMPARISON)

    def first_orders(self) -> Iterator[list[int]]:
        """Yield the greedy orders: by size, by size times duration, by duration.

        Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (by size).
        """
        sizes, indices = self._sizes, range(len(self._sizes))
        durations = [lifetime.last - lifetime.first + 1 for lifetime in self._lifetimes]
        yield sorted(indices, key=lambda i: (-sizes[i], i))
        yield sorted(indices, key=lambda i: (-sizes[i] * durations[i], i))
        yield sorted(indices, key=lambda i: (-durations[i], -sizes[i], i))

    def place(self, order: list[int]) -> _Placed:
        """Place all buffers in the given order."""
        offsets, sizes = [-1] * len(order), self._sizes
        spans: list[tuple[int, int] | None] = [None] * len(order)
        for index in order:
            taken = sorted([span for other in self.neighbours[index] if (span := spans[other])])
            start = offsets[index] = _tightest_gap(taken, sizes[index])
            spans[index] = start, start + sizes[index]
        return _Placed(order, offsets, max([end for _, end in filter(None, spans)], default=0))

    def improve(self, best: _Placed, enough: float, budget: int) -> _Placed:
        """Return the best plan found by local search: move a buffer that ends the arena, or one that supports such a
        buffer, to an earlier place in the order. budget: how many comparisons of two buffers this may take."""
        comparisons = len(self._sizes) + sum(map(len, self.neighbours))
        changes = min(MAX_CHANGES, min(MAX_COMPARISONS, budget) // comparisons)
        if not changes:
            return best
        from random import Random  # few plans need it

        random = Random(0)  # a fixed seed: plans are reproducible
        current = best
        for _ in range(changes):
            moved = random.choice(self._tallest_stacks(current))
            order = [index for index in current.order if index != moved]
            order.insert(random.randrange(current.order.index(moved) + 1), moved)
            placed = self.place(order)
            if placed.nbytes <= current.nbytes:
                current = placed
            if current.nbytes <= enough:
                break
        return current

    def _tallest_stacks(self, placed: _Placed) -> list[int]:
        offsets, sizes = placed.offsets, self._sizes
        found = [index for index in placed.order if offsets[index] + sizes[index] == placed.nbytes]
        known = set(found)
        for index in found:  # grows meanwhile
            for other in self.neighbours[index]:
                if other not in known and offsets[other] + sizes[other] == offsets[index]:
                    known.add(other)
                    found.append(other)
        return found


def neighbours_of(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the interference graph of lifetimes (first, last): for each, the indices of those that overlap it."""
    neighbours: list[list[int]] = [[] for _ in spans]
    living: list[int] = []
    for index in sorted(range(len(spans)), key=lambda i: spans[i][0]):
        living = [other for other in living if spans[other][1] >= spans[index][0]]
        for other in living:
            neighbours[index].append(other)
            neighbours[other].append(index)
        living.append(index)
    return neighbours


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap between taken intervals (sorted) that holds `size`, else their end."""
    best, best_gap, end = None, None, 0
    for start, stop in taken:
        if size <= start - end and (best_gap is None or start - end < best_gap):
            best, best_gap = end, start - end
        if stop > end:  # not max(), which takes most of the time of a plan
            end = stop
    return end if best is None else best
