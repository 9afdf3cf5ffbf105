"""Memory of a state space: allocations in one array of bytes, at addresses that are checked."""

from __future__ import annotations

import numpy as np

UNWRITTEN = 0xFF  # NaN in every floating-point type
GAP = 4096  # bytes between allocations, which belong to none
LARGEST_ACCESS = 16


class Memory:
    """Allocations from `base` on. Addresses are arrays, one of each lane."""

    def __init__(self, base: int, gap: int = GAP) -> None:
        self.base, self._gap, self._end = base, gap, base
        self.bytes = np.empty(0, np.uint8)
        self.starts, self.ends = np.empty(0, np.int64), np.empty(0, np.int64)

    def allocate(self, nbytes: int, align: int = 256, values: bytes = b"") -> int:
        """Return the address of new bytes: those of `values`, else unwritten ones."""
        start = -(-(self._end + self._gap) // align) * align
        self._end = start + nbytes
        size = -(-(self._end - self.base) // LARGEST_ACCESS) * LARGEST_ACCESS
        grown = np.full(size, UNWRITTEN, np.uint8)
        grown[: self.bytes.size] = self.bytes
        grown[start - self.base : start - self.base + len(values)] = np.frombuffer(values, np.uint8)
        self.bytes = grown
        self.starts, self.ends = np.append(self.starts, start), np.append(self.ends, self._end)
        return start

    def free(self, address: int) -> None:
        kept = self.starts != address
        self.starts, self.ends = self.starts[kept], self.ends[kept]

    def outside(self, addresses: np.ndarray, nbytes: int | np.ndarray) -> np.ndarray:
        """Return of each address whether an access of so many bytes is not inside one allocation."""
        if not self.starts.size:
            return np.ones(addresses.shape, bool)
        number = np.maximum(np.searchsorted(self.starts, addresses, "right") - 1, 0)
        return (addresses < self.starts[number]) | (addresses + nbytes > self.ends[number])

    def load(self, addresses: np.ndarray, nbytes: int) -> np.ndarray:
        """Return words of 1, 2, 4 or 8 bytes, as unsigned numbers, at aligned addresses."""
        return self.bytes.view(f"u{nbytes}")[(addresses - self.base) // nbytes]

    def store(self, addresses: np.ndarray, words: np.ndarray) -> None:
        self.bytes.view(words.dtype)[(addresses - self.base) // words.dtype.itemsize] = words

    def read(self, address: int, nbytes: int) -> np.ndarray:
        """Return bytes, as a view."""
        return self.bytes[address - self.base : address - self.base + nbytes]
