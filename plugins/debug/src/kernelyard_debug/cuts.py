"""Cut a failing model down: the shortest prefix, the longest part of it that can go, then single ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard.ir import Binding
from kernelyard_debug.case import Case, Recorded, cut

Fails = Callable[[Case], bool]


def shortest_prefix(case: Case, recorded: Recorded, fails: Fails) -> Sequence[Binding]:
    """Return the fewest bindings from the start that fail; all where that is not monotone and none shorter is found."""
    bindings = case.function.bindings

    def prefix_fails(length: int) -> bool:
        part = cut(case, bindings[:length], recorded)
        return part is not None and fails(part)

    return bindings[: _least(len(bindings), prefix_fails)]


def latest_start(case: Case, bindings: Sequence[Binding], recorded: Recorded, fails: Fails) -> Sequence[Binding]:
    """Return the bindings without as many from the start as can go."""

    def suffix_fails(length: int) -> bool:
        part = cut(case, bindings[len(bindings) - length :], recorded)
        return part is not None and fails(part)

    return bindings[len(bindings) - _least(len(bindings), suffix_fails) :]


def without_each(case: Case, bindings: Sequence[Binding], recorded: Recorded, fails: Fails) -> Sequence[Binding]:
    """Return bindings of which none can go: by halves, then quarters, and so on to single ones."""
    kept, size = list(bindings), max(1, len(bindings) // 2)
    while True:
        place, removed = 0, False
        while place < len(kept):
            fewer = kept[:place] + kept[place + size :]
            part = cut(case, fewer, recorded) if fewer else None
            if part is not None and fails(part):
                kept, removed = fewer, True
            else:
                place += size
        if size == 1 and not removed:
            return kept
        size = max(1, size // 2)


def _least(most: int, holds: Callable[[int], bool]) -> int:
    """Return the least number for which something holds, which does for `most`; by doubling, then by halves."""
    low, high = 0, most  # it does not hold for low, and holds for high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
