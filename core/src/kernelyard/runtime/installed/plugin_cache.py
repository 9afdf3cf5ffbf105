"""Folders where plugins keep files of their libraries' making: compiled engines, timings. One for each version.

They are in the folder of all caches, beside those of `DiskCache`, and `kernelyard cache` lists and clears them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kernelyard.runtime.installed.disk_cache import max_bytes, private_cache_folder
from kernelyard.runtime.installed.distributions import find_distribution

MARKER = ".kernelyard-plugin-cache"  # nothing is deleted in a folder without it


def plugin_cache(distribution: str, nbytes: int = 0) -> Path | None:
    """Return the folder of an installed distribution and its version, made if need be; None where nothing may be kept.

    The files that were changed longest ago are deleted here, when those in the folder pass the bound of caches with
    `nbytes`, which the caller is about to add. What is larger than the bound itself may not be kept.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from unittest.mock import patch
        >>> with TemporaryDirectory() as folder, patch.dict(os.environ, KERNELYARD_CACHE_DIR=folder):
        ...     plugin_cache("NumPy").name.rpartition("-")[0]
        'numpy'
    """
    found = find_distribution(distribution)
    if found is None or not max_bytes() or nbytes > max_bytes():
        return None
    folder = private_cache_folder(f"{found.name.lower()}-{found.version}")
    if folder is not None:
        try:
            (folder / MARKER).touch()
        except OSError:  # a full disk, say
            return None
        _tidy(folder, max_bytes() - nbytes)
    return folder


def is_plugin_cache(folder: Path) -> bool:
    """Return True for a folder that `plugin_cache` made."""
    return (folder / MARKER).is_file()


def plugin_files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files of a plugin's folder, those in folders in it too, with their status; links are not followed."""
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            with suppress(OSError):  # files may go at any time
                if name != MARKER or file.parent != folder:
                    yield file, file.lstat()


def _tidy(folder: Path, most: int) -> None:
    files = sorted(plugin_files(folder), key=lambda file: file[1].st_mtime)
    nbytes = sum(status.st_size for _, status in files)
    for file, status in files:
        if nbytes <= most:
            return
        with suppress(OSError):
            file.unlink()
            nbytes -= status.st_size
