"""A recycling allocator for large results.

The system zeroes each page of new memory when it is first touched. For results of megabytes, such as the KV cache of a
decoder, that takes longer than computing them. So blocks without references are kept for later calls.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.abi.memory import address_of, align, aligned_bytes
from kernelyard.runtime.lru import CacheInfo

# The most bytes that a process keeps idle.
KEPT_BYTES = 128 << 20
# Size classes between two powers of two, so that results that grow from call to call share a block.
_STEPS = 8


class ResultMemory:
    """Allocates arrays whose memory is recycled when their last reference is gone; thread-safe.

    Example:
        >>> blocks = ResultMemory()
        >>> first = blocks.empty((1000, 100), np.dtype(np.float32))
        >>> address = address_of(first)
        >>> del first
        >>> address_of(blocks.empty((100, 1000), np.dtype(np.float32))) == address
        True
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._idle: dict[int, list[np.ndarray]] = {}  # by size
        # Sizes in the order of their release: the least recently released are freed first. A block is added before its
        # size, and its size is removed before the block, as the release of another block may interrupt either.
        self._order: deque[int] = deque()
        self.idle_nbytes = 0
        self._hits = self._misses = 0
        # A block is released by whichever thread drops the last reference, and at any instruction if the garbage
        # collector does: so the lock is reentrant, and nothing below blocks while it is held.
        self._lock = renewed_in_children(threading.RLock())
        self._in_use: dict[int, Any] = {}  # weak references by identity: arrays of ctypes have no hash

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised dense array, 64-byte aligned; its memory is recycled when no view of it is left.

        Raises: ExecutionError when out of memory.
        """
        return self.allocator(shape, dtype)()

    def allocator(self, shape: Sequence[int], dtype: np.dtype) -> Callable[[], np.ndarray]:
        """Return a function that does what `empty` does, for many arrays of one shape."""
        return partial(self._allocate, tuple(shape), dtype, size_class(prod(shape) * dtype.itemsize))

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
        block = self._take(size)
        if block is None:
            block = aligned_bytes(size)
        # Only the array and its views keep this ctypes array alive.
        owner: Any = _owner_type(block.nbytes).from_address(address_of(block))
        watch = weakref.ref(owner, partial(self._recycle, block))
        self._in_use[id(watch)] = watch
        return np.ndarray(shape, dtype, owner)

    def info(self) -> CacheInfo:
        """Return the cache statistics; the entries are the idle blocks, bounded by their bytes."""
        with self._lock:
            entries = sum(map(len, self._idle.values()))
            return CacheInfo(self._hits, self._misses, entries, entries, self.idle_nbytes)

    def _take(self, size: int) -> np.ndarray | None:
        """Take an idle block of that size, else the next larger one up to twice the size; None if there is none.

        So a program that is called with random sizes keeps few blocks, and not one of each size.
        """
        largest = 2 * size
        with self._lock:
            while not (blocks := self._idle.get(size)):
                size = size_class(size + 1)
                if size > largest:
                    self._misses += 1
                    return None
            self._hits += 1
            self._order.remove(size)
            self.idle_nbytes -= size
            return blocks.pop()

    def _recycle(self, block: np.ndarray, watch: Any) -> None:
        del self._in_use[id(watch)]
        size = block.nbytes
        if size > self._kept_bytes:
            return
        with self._lock:
            self._idle.setdefault(size, []).append(block)
            self._order.append(size)
            self.idle_nbytes += size
            while self.idle_nbytes > self._kept_bytes and self._order:
                oldest = self._order.popleft()
                self.idle_nbytes -= oldest
                self._idle[oldest].pop()


def size_class(nbytes: int) -> int:
    """Return a size that is at least `nbytes`, and at most an eighth more.

    Example:
        >>> size_class(100_000), size_class(1 << 20), size_class((1 << 20) + 1)
        (106496, 1048576, 1179648)
    """
    step = max(1 << max(nbytes - 1, 1).bit_length() - 1, _STEPS * align(1)) // _STEPS
    return -(-nbytes // step) * step


@cache
def _owner_type(size: int) -> type[ctypes.Array[ctypes.c_uint8]]:
    return ctypes.c_uint8 * size
