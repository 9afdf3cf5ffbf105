"""Headers that NVRTC reads once in a process, however many programs include them.

NVRTC writes what it has read of headers into a file, and maps that file when the next program begins with the same
lines. It fits the process that wrote it alone, where it lies at the same address.

Source: CUDA Toolkit documentation, "NVRTC", section "Precompiled Header (PCH)"; NVRTC 12.8 and later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from threading import Lock

HEAP_NBYTES = 512 << 20  # of addresses; CUTLASS's headers of a matmul take 270 MB of them
_SET_HEAP = "nvrtcSetPCHHeapSize"
_END = "namespace kernelyard {}"  # the file holds what stands before the first line that is no directive
_included: set[tuple[str, ...]] = set()
_folders: dict[tuple[str, ...], TemporaryDirectory[str]] = {}
_lock = Lock()


def with_headers(headers: str, source: str) -> str:
    """Return the program of lines that include headers, and of the text after these."""
    return f"{headers}\n{_END}\n{source}" if headers else source


@contextmanager
def precompiled(nvrtc: ctypes.CDLL, headers: str, options: Sequence[str]) -> Iterator[list[str]]:
    """Yield the options that make NVRTC reuse headers in a program of `with_headers`, while the block lasts.

    There are none for headers that are included for the first time, since writing the file takes a third of the time
    that reading it saves, none for an NVRTC that cannot, and none while another thread compiles.
    """
    key = (headers, *options)
    if not headers or not hasattr(nvrtc, _SET_HEAP) or not _lock.acquire(blocking=False):
        yield []
        return
    try:
        if key not in _included:
            _included.add(key)
            yield []
            return
        if not _folders:
            getattr(nvrtc, _SET_HEAP)(ctypes.c_size_t(HEAP_NBYTES))
        if key not in _folders:
            _folders[key] = TemporaryDirectory(prefix="kernelyard-headers-")  # removed when the process ends
        yield ["--pch", f"--pch-dir={_folders[key].name}"]
    finally:
        _lock.release()
