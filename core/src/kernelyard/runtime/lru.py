"""LRU: the last few things made, by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRU(Generic[K, V]):
    """A bounded map that forgets what was used longest ago; safe to use from many threads.

    Example:
        >>> squares = LRU(2)
        >>> [squares.get_or_make(n, lambda: n * n) for n in (1, 2, 3)], list(squares)
        ([1, 4, 9], [2, 3])
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: OrderedDict[K, V] = OrderedDict()
        self._lock = RLock()

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of `key`, made if it is not there; others wait meanwhile, so it is made once."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
            value = self._items[key] = make()
            if len(self._items) > self._capacity:
                self._items.popitem(last=False)
            return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        """Return the keys, least recently used first."""
        return iter(list(self._items))
