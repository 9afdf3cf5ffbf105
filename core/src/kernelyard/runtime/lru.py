"""LRU: the last few things made, by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from threading import RLock
from typing import Generic, TypeVar

from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.forks import renewed_in_children

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CacheInfo(NamedTuple):
    """Count what a cache did and holds, as of `Executable.cache_info`.

    hits, misses: look-ups that found something, and those that had to make it. entries: how many it holds; capacity: at
    most. nbytes: of the memory of tensors that it holds; Python objects and code that a library generated do not count.
    """

    hits: int
    misses: int
    entries: int
    capacity: int
    nbytes: int = 0


def sum_infos(infos: Iterable[CacheInfo]) -> CacheInfo:
    """Return the sums over caches of one kind.

    Example:
        >>> sum_infos([CacheInfo(1, 2, 2, 16), CacheInfo(0, 1, 1, 16)])
        CacheInfo(hits=1, misses=3, entries=3, capacity=32, nbytes=0)
    """
    return CacheInfo(*map(sum, zip(CacheInfo(0, 0, 0, 0), *infos, strict=True)))


class LRU(Generic[K, V]):
    """A bounded map that forgets what was used longest ago; safe to use from many threads.

    capacity: the most entries; may be raised.

    Example:
        >>> squares = LRU(2)
        >>> [squares.get_or_make(n, lambda: n * n) for n in (1, 2, 3)], list(squares)
        ([1, 4, 9], [2, 3])
        >>> squares.info()
        CacheInfo(hits=0, misses=3, entries=2, capacity=2, nbytes=0)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._items: OrderedDict[K, V] = OrderedDict()
        self._lock = renewed_in_children(RLock())
        self._hits = self._misses = 0

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of `key`, made if it is not there; others wait meanwhile, so it is made once."""
        with self._lock:
            if key in self._items:
                self._hits += 1
                self._items.move_to_end(key)
                return self._items[key]
            self._misses += 1
            value = self._items[key] = make()
            if len(self._items) > self.capacity:
                self._items.popitem(last=False)
            return value

    def pop(self, key: K) -> V | None:
        """Forget a key; return its value, or None where there is none."""
        with self._lock:
            return self._items.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()

    def info(self, nbytes_of: Callable[[V], int] | None = None) -> CacheInfo:
        """Return the counts so far; `nbytes_of`: bytes of tensors that a value holds."""
        with self._lock:
            nbytes = sum(map(nbytes_of, self._items.values())) if nbytes_of else 0
            return CacheInfo(self._hits, self._misses, len(self._items), self.capacity, nbytes)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[K]:
        """Return the keys, least recently used first."""
        return iter(list(self._items))
