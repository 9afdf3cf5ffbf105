"""Memory: aligned buffers and workspaces."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import ExecutionError

ALIGNMENT = 64
# Tensors that move have addresses of at least this alignment: what NumPy gives its arrays.
REBIND_ALIGNMENT = 16


def align(nbytes: int) -> int:
    """Round `nbytes` up to the alignment.

    Example:
        >>> align(1), align(64), align(65)
        (64, 64, 128)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first element."""
    return _word_at(id(array) + _DATA_OFFSET).value if _IS_READ_FROM_STRUCT else array.ctypes.data


# NumPy's C ABI fixes that an array object's first field is the address of its elements (`PyArrayObject_fields`).
# Reading it there takes a tenth of the time of `array.ctypes.data`, and every run does it.
_word_at = ctypes.c_size_t.from_address
_DATA_OFFSET = object.__basicsize__


def _struct_has_address() -> bool:
    probe = np.empty(8, np.uint8)[3:]
    is_at_id = sys.implementation.name == "cpython"
    return is_at_id and _word_at(id(probe) + _DATA_OFFSET).value == probe.ctypes.data


_IS_READ_FROM_STRUCT = _struct_has_address()


def aligned_bytes(nbytes: int) -> np.ndarray:
    """Return an uninitialised uint8 array of `nbytes`, 64-byte aligned; the system commits its pages when they are
    touched.

    Raises: ExecutionError when out of memory.
    """
    try:
        buffer = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        raise ExecutionError("out of memory", found=f"{nbytes} bytes are needed") from error
    offset = -address_of(buffer) % ALIGNMENT
    return buffer[offset : offset + nbytes]


def aligned_empty(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return an uninitialised dense array of a dtype name, 64-byte aligned.

    Example:
        >>> array = aligned_empty((2, 3), "float32")
        >>> array.shape, address_of(array) % 64
        ((2, 3), 0)
    """
    return view_of(aligned_bytes(nbytes_of(shape, dtype)), shape, dtype)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a read-only view of the array if it is dense and 64-byte aligned, else a copy that is."""
    name = dtypes.from_numpy(array.dtype)
    if array.flags.c_contiguous and address_of(array) % ALIGNMENT == 0 and array.dtype.isnative:
        copied = array.view()
    else:
        copied = aligned_empty(array.shape, name)
        copied[...] = array
        give_back_pages(array)
    copied.flags.writeable = False
    return copied


def nbytes_of(shape: Sequence[int], dtype: str) -> int:
    """Return the size of a dense tensor in bytes."""
    count = dtypes.itemsize(dtype)
    for dim in shape:
        count *= dim
    return count


def view_of(buffer: np.ndarray, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return the first bytes of a uint8 buffer seen as a dense tensor."""
    return buffer[: nbytes_of(shape, dtype)].view(dtypes.to_numpy(dtype)).reshape(tuple(shape))


def give_back_pages(array: np.ndarray) -> None:
    """Release the resident pages of an array that lies in a memory-mapped file (MADV_DONTNEED).

    Reading the array again fetches them again. Arrays in other memory are left alone.
    """
    root: object = array
    while isinstance(root, np.ndarray):
        root = root.base
    mapping = root.obj if isinstance(root, memoryview) else root
    if not isinstance(mapping, mmap.mmap) or not array.nbytes or not memoryview(mapping).readonly:
        return
    start = address_of(array) - address_of(np.frombuffer(mapping, np.uint8, 1))
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    if hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_DONTNEED, first, start + array.nbytes - first)


class HeapTrimmer:
    """Returns free pages of malloc's arenas to the system (malloc_trim), in a bounded share of the time.

    Libraries allocate many small objects for each new set of sizes. Pages freed between objects that are still in use
    stay in the arena, and each thread may have an arena of its own. Does nothing without glibc.

    Example:
        >>> trimmer = HeapTrimmer()
        >>> trimmer.trim()
        True
        >>> trimmer.trim()  # too soon after the first
        False
    """

    SHARE = 0.01  # of the time, at most

    def __init__(self) -> None:
        self._next = 0.0  # seconds of the monotonic clock

    def trim(self) -> bool:
        """Trim the heap unless the last trim was too recent; return True if it was trimmed."""
        start, trim = time.monotonic(), _malloc_trim()
        if trim is None or start < self._next:
            return False
        self._next = math.inf  # no other thread trims meanwhile
        trim(0)
        end = time.monotonic()
        self._next = end + (end - start) / self.SHARE
        return True


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


HEAP_TRIMMER = HeapTrimmer()


class Workspace:
    """Scratch memory that calls of one table share: what a call leaves there is lost at the next.

    Addresses already handed out stay valid, so a larger request brings a new buffer; sizes double, which keeps the
    sum below four times the largest request.
    """

    def __init__(self) -> None:
        self._buffers: list[np.ndarray] = []

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def __call__(self, nbytes: int) -> int:
        """Return the address of at least `nbytes`, 64-byte aligned."""
        return address_of(self.buffer(nbytes))

    def buffer(self, nbytes: int) -> np.ndarray:
        """Return the same memory as an array of at least `nbytes` uint8."""
        largest = self._buffers[-1].nbytes if self._buffers else 0
        if nbytes > largest or not self._buffers:
            self._buffers.append(aligned_bytes(align(max(nbytes, 2 * largest, ALIGNMENT))))
        return self._buffers[-1]
