"""Split what is measured into batches that fit into memory together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def batches(items: Iterable[Item], nbytes: Callable[[Item], int], budget: int) -> Iterator[list[Item]]:
    """Yield items in their order, in batches of at most `budget` bytes; a larger item is a batch of its own.

    Example:
        >>> list(batches([3, 3, 9, 2], lambda item: item, budget=6))
        [[3, 3], [9], [2]]
    """
    batch: list[Item] = []
    used = 0
    for item in items:
        size = nbytes(item)
        if batch and used + size > budget:
            yield batch
            batch, used = [], 0
        batch.append(item)
        used += size
    if batch:
        yield batch
