"""The memory plan: where buffers lie in one arena, so that those with disjoint lifetimes share bytes.

Finding the smallest arena is hard (dynamic storage allocation), but how small it can be at best is plain: as much as
lives at one time. Greedy orders nearly always reach that; where none comes near, the best is improved step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernelyard.runtime.abi.memory import align

NEAR = 1.02  # of the lower bound: nearer is not worth searching
MAX_CHANGES = 400
MAX_WORK = 400_000  # looks at a pair of buffers, over all changes: a tenth of a second at most


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
    """Offsets, multiples of the alignment, such that buffers that exist at the same time do not overlap.

    The same lifetimes always give the same plan.

    Example:
        >>> plan_memory([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
        MemoryPlan(offsets=(0, 64, 0), nbytes=128)
    """
    packing = _Packing(lifetimes)
    enough = NEAR * least_nbytes(lifetimes)
    placed = [packing.place(order) for order in packing.first_orders(enough)]
    best = min(placed, key=lambda each: each.nbytes)
    if best.nbytes > enough:
        best = packing.improve(best, enough)
    return MemoryPlan(tuple(best.offsets), best.nbytes)


class _Placed(NamedTuple):
    order: list[int]
    offsets: list[int]
    nbytes: int


class _Packing:
    """Buffers by number; a plan is an order: each in turn goes into the tightest gap that those before it leave."""

    def __init__(self, lifetimes: Sequence[Lifetime]) -> None:
        self._lifetimes = lifetimes
        self._sizes = [align(lifetime.nbytes) for lifetime in lifetimes]
        self._neighbours: list[list[int]] = [[] for _ in lifetimes]
        living: list[int] = []
        for number in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first):
            living = [other for other in living if lifetimes[other].last >= lifetimes[number].first]
            for other in living:
                self._neighbours[number].append(other)
                self._neighbours[other].append(number)
            living.append(number)

    def first_orders(self, enough: float) -> Iterator[list[int]]:
        """Largest first (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020); unless
        that is enough, also by size times duration, and by duration."""
        sizes, numbers = self._sizes, range(len(self._sizes))
        durations = [lifetime.last - lifetime.first + 1 for lifetime in self._lifetimes]
        by_size = sorted(numbers, key=lambda i: (-sizes[i], i))
        yield by_size
        if self.place(by_size).nbytes > enough:
            yield sorted(numbers, key=lambda i: (-sizes[i] * durations[i], i))
            yield sorted(numbers, key=lambda i: (-durations[i], -sizes[i], i))

    def place(self, order: list[int]) -> _Placed:
        """Return every buffer of an order in its place."""
        offsets, sizes, nbytes = [-1] * len(order), self._sizes, 0
        for number in order:
            taken = [(offsets[other], offsets[other] + sizes[other]) for other in self._neighbours[number]]
            offsets[number] = _tightest_gap(sorted(span for span in taken if span[0] >= 0), sizes[number])
            nbytes = max(nbytes, offsets[number] + sizes[number])
        return _Placed(order, offsets, nbytes)

    def improve(self, best: _Placed, enough: float) -> _Placed:
        """Return the best plan found by placing buffers earlier that reach the arena's end, or that such ones stand
        on."""
        from random import Random  # few plans need it

        chance = Random(0)  # any fixed sequence
        work = len(self._sizes) + sum(map(len, self._neighbours))
        current = best
        for _ in range(min(MAX_CHANGES, MAX_WORK // work)):
            moved = chance.choice(self._tallest_stacks(current))
            order = [number for number in current.order if number != moved]
            order.insert(chance.randrange(current.order.index(moved) + 1), moved)
            placed = self.place(order)
            if placed.nbytes <= current.nbytes:
                current = placed
            if current.nbytes <= enough:
                break
        return current

    def _tallest_stacks(self, placed: _Placed) -> list[int]:
        offsets, sizes = placed.offsets, self._sizes
        found = [number for number in placed.order if offsets[number] + sizes[number] == placed.nbytes]
        known = set(found)
        for number in found:  # grows meanwhile
            for other in self._neighbours[number]:
                if other not in known and offsets[other] + sizes[other] == offsets[number]:
                    known.add(other)
                    found.append(other)
        return found


def _tightest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap between taken intervals (sorted) that holds `size`, else their end."""
    best, best_room, end = None, None, 0
    for start, stop in taken:
        room = start - end
        if room >= size and (best_room is None or room < best_room):
            best, best_room = end, room
        end = max(end, stop)
    return end if best is None else best
