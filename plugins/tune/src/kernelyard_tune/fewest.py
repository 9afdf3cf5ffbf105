"""Choose placements for several sizes: as few as can be, as each further one makes the artifact larger."""

from __future__ import annotations

from collections.abc import Sequence


def fewest(good: Sequence[Sequence[str]]) -> list[str]:
    """Return one of the names for each size, so that few differ: again and again what is good at most sizes is taken.

    good: for each size the names that are good there, the simplest first, at least one. Of names that are good at as
    many sizes, the one that comes first is taken.

    Example:
        >>> fewest([["a", "b"], ["b"], ["c"]])
        ['b', 'b', 'c']
    """
    chosen: dict[int, str] = {}
    while left := [number for number in range(len(good)) if number not in chosen]:
        known = list(dict.fromkeys(name for number in left for name in good[number]))
        name = max(known, key=lambda name: sum(name in good[number] for number in left))
        chosen.update((number, name) for number in left if name in good[number])
    return [chosen[number] for number in range(len(good))]
