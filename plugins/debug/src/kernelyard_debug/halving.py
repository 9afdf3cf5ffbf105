"""Search by halving."""

from __future__ import annotations

from collections.abc import Callable


def least_by_halves(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the least number for which something holds, which does for `high` and not for `low`.

    Example:
        >>> least_by_halves(0, 100, lambda number: number >= 42)
        42
    """
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
