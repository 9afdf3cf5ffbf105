"""Headers that NVRTC reads once in a process, however many programs include them.

NVRTC writes what it has read of headers into a file, and maps that file when the next program begins with the same
lines. It fits the process that wrote it alone, where it lies at the same address.

Source: CUDA Toolkit documentation, "NVRTC", section "Precompiled Header (PCH)"; NVRTC 12.8 and later.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

HEAP_NBYTES = 512 << 20  # of addresses; CUTLASS's headers of a matmul take 270 MB of them
_SET_HEAP = "nvrtcSetPCHHeapSize"
_END = "namespace kernelyard {}"  # the file holds what stands before the first line that is no directive
_PREFIX = "kernelyard-headers-"
_folders: dict[tuple[str, ...], str] = {}  # of what was included before; made when it is included again
_lock = Lock()


def with_headers(headers: str, source: str) -> str:
    """Return the program of lines that include headers, and of the text after these."""
    return f"{headers}\n{_END}\n{source}" if headers else source


@contextmanager
def precompiled(library: str, headers: str, options: Sequence[str]) -> Iterator[list[str]]:
    """Yield the options that make NVRTC reuse headers in a program of `with_headers`, while the block lasts.

    There are none for headers that are included for the first time, since writing the file takes a third of the time
    that reading it saves, none for an NVRTC that cannot, and none while another thread compiles.
    """
    key = (library, headers, *options)
    if not headers or not hasattr(ctypes.CDLL(library), _SET_HEAP) or not _lock.acquire(blocking=False):
        yield []
        return
    try:
        if key in _folders:
            yield _options(library, _folders[key])
        else:
            _folders[key] = str(len(_folders))
            yield []
    finally:
        _lock.release()


def _options(library: str, name: str) -> list[str]:
    try:
        folder = _folder_of_process(library) / name
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # there is no folder for temporary files
        return []
    return ["--pch", f"--pch-dir={folder}"]


@cache
def _folder_of_process(library: str) -> Path:
    """Prepare NVRTC for files of headers, and return where they are until the process ends.

    Those of processes that were killed are removed: they are of no use, and of hundreds of megabytes.
    """
    getattr(ctypes.CDLL(library), _SET_HEAP)(ctypes.c_size_t(HEAP_NBYTES))
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = old.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and Path("/proc/self").exists() and not Path("/proc", pid).exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
