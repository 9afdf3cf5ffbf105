"""Cut a failing model down: the shortest prefix, the longest part of it that can go, then single ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kernelyard.ir import Binding
from kernelyard_debug.case import Case, Recorded, cut_case
from kernelyard_debug.halving import least_by_halves

Fails: TypeAlias = "Callable[[Case], bool]"
Bindings: TypeAlias = "Sequence[Binding]"


def shortest_prefix(case: Case, bindings: Bindings, recorded: Recorded, fails: Fails) -> Bindings:
    """Return the fewest bindings from the start that fail; all where that is not monotone and none shorter is found."""

    def prefix_fails(length: int) -> bool:
        part = cut_case(case, bindings[:length], recorded)
        return part is not None and fails(part)

    return bindings[: least_by_halves(0, len(bindings), prefix_fails)]


def latest_start(case: Case, bindings: Bindings, recorded: Recorded, fails: Fails) -> Bindings:
    """Return the bindings without as many from the start as can go."""
    length = len(bindings)

    def suffix_fails(count: int) -> bool:
        part = cut_case(case, bindings[length - count :], recorded)
        return part is not None and fails(part)

    low, high = 0, 1  # most faults are in few bindings: by doubling
    while high < length and not suffix_fails(high):
        low, high = high, 2 * high
    return bindings[length - least_by_halves(low, min(high, length), suffix_fails) :]


def without_each(case: Case, bindings: Bindings, recorded: Recorded, fails: Fails) -> Bindings:
    """Return bindings of which none can go: by halves, then quarters, and so on to single ones."""
    kept, size = list(bindings), max(1, len(bindings) // 2)
    while True:
        place, removed = 0, False
        while place < len(kept):
            fewer = kept[:place] + kept[place + size :]
            part = cut_case(case, fewer, recorded) if fewer else None
            if part is not None and fails(part):
                kept, removed = fewer, True
            else:
                place += size
        if size == 1 and not removed:
            return kept
        size = max(1, size // 2)
