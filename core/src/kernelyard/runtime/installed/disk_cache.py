"""Persistent cache of compiled code on disk, shared by processes and keyed by a digest of the source.

All of it is in one folder: `KERNELYARD_CACHE_DIR`, else `kernelyard` in the user's cache folder. `KERNELYARD_CACHE_MB`
bounds each cache in it; 0 turns them off. Deleting the folder is always safe.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from kernelyard.records import NamedTuple
from kernelyard.variables import EnvironmentVariable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from logging import Logger
    from pathlib import Path

DEFAULT_MB = 512
FOLDER_VARIABLE = EnvironmentVariable(
    "KERNELYARD_CACHE_DIR",
    "the folder of all caches; it must be writable by the user alone",
    "`kernelyard` in the user's cache folder",
)
SIZE_VARIABLE = EnvironmentVariable("KERNELYARD_CACHE_MB", "the limit of each cache in MB; 0: keep nothing", "512")
CACHE_LOOKUPS: Counter[tuple[str, bool]] = Counter()  # of this process: by name of the cache, and whether it was found
_MAGIC = b"KYCACHE1"
_ENTRY = r"[0-9a-f]{64}"
_DIGEST = hashlib.sha256().digest_size
_ABANDONED_SECONDS = 3600  # a temporary file this old belongs to a process that was killed
_KEPT_FRACTION = 0.75  # of the bound, once the oldest entries are dropped


def cache_folder() -> Path:
    """Return the folder of all caches."""
    from pathlib import Path  # programs that start do without it: it takes long to import

    return Path(_cache_folder())


def _cache_folder() -> str:
    given = FOLDER_VARIABLE.get()
    if given:
        return given
    home, chosen = os.environ.get("HOME", ""), os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform == "linux" and home.startswith("/"):  # what platformdirs says, whose import takes long
        return os.path.join(chosen if chosen.startswith("/") else f"{home}/.cache", "kernelyard")
    from platformdirs import user_cache_dir

    return user_cache_dir("kernelyard", appauthor=False)


def private_cache_folder(name: str) -> Path | None:
    """Return the folder of that name in the cache folder, made if need be; None where others could write to it.

    Code is loaded from such folders: what somebody else can write there would run as us.
    """
    from pathlib import Path

    folder = _create_private_folder(name)
    return None if folder is None else Path(folder)


def _create_private_folder(name: str) -> str | None:
    folder = os.path.join(_cache_folder(), name)
    try:
        if not os.path.isdir(folder):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError:
        return None
    is_ours = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if is_ours and os.access(folder, os.W_OK) else None


def max_bytes() -> int:
    """Return the bound of each cache, from `KERNELYARD_CACHE_MB`; what is no number counts as not set."""
    text = SIZE_VARIABLE.get()
    return (int(text) if text.isdecimal() else DEFAULT_MB) * 1_000_000


def list_ignored_settings() -> list[str]:
    """List what the variables of caches say that cannot be done, a sentence each."""
    notes: list[str] = []
    text = SIZE_VARIABLE.get()
    if text and not text.isdecimal():
        notes.append(f"{SIZE_VARIABLE}={text} is no number of MB: {DEFAULT_MB} holds")
    if max_bytes() and private_cache_folder("plugins") is None:
        problem = f"{cache_folder()} is not writable by you alone"
        notes.append(f"nothing is cached: {problem}; {FOLDER_VARIABLE} names another folder")
    return notes


class CacheUse(NamedTuple):
    """Location and size of a cache; folder: None where it is off or cannot be used."""

    folder: Path | None
    entries: int
    nbytes: int
    max_bytes: int

    def __str__(self) -> str:
        if self.folder is None:
            return "off"
        return (
            f"{self.folder}, {self.entries} entries, {self.nbytes / 1e6:.1f} of at most {self.max_bytes / 1e6:.0f} MB"
        )


def cache_folders() -> list[Path]:
    """Return the folder of each cache in the cache folder, by name."""
    folder = cache_folder()
    with suppress(OSError), os.scandir(folder) as found:
        return sorted(folder / entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    return []


def cache_size(folder: Path | str) -> tuple[int, int]:
    """Return how many entries a cache has, and of how many bytes."""
    sizes = [status.st_size for path, status in _files(folder) if re.fullmatch(_ENTRY, os.path.basename(path))]
    return len(sizes), sum(sizes)


def clear_cache(folder: Path) -> tuple[int, int]:
    """Delete the entries of a cache; return how many and of how many bytes. What others are writing stays.

    Only what `DiskCache` has named is deleted, whatever folder the environment names.
    """
    count = nbytes = 0
    for path, status in _files(folder):
        if re.fullmatch(_ENTRY, os.path.basename(path)):
            _delete(path)
            count, nbytes = count + 1, nbytes + status.st_size
    return count, nbytes


class DiskCache:
    """Bytes by the digest of what they were made from; for many processes at once.

    An entry appears complete or not at all, and holds a digest of its bytes: one that was damaged is dropped and
    counts as missing. Nothing here raises for a full disk or a folder that cannot be used: then nothing is kept.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from unittest.mock import patch
        >>> with TemporaryDirectory() as folder:
        ...     with patch.dict(os.environ, KERNELYARD_CACHE_DIR=folder, KERNELYARD_CACHE_MB="1"):
        ...         cache = DiskCache("example")
        ...         cache.put("text that was compiled", b"code")
        ...         cache.get("text that was compiled"), cache.get("another text")
        (b'code', None)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._nbytes: int | None = None  # about how much is there; None: not counted yet

    def get(self, key: str) -> bytes | None:
        """Return the cached data of a key; None on a miss."""
        found = self._read_entry(key)
        CACHE_LOOKUPS[self.name, found is not None] += 1
        return found

    def _read_entry(self, key: str) -> bytes | None:
        path = self._path(key)
        payload = None if path is None else _read(path)
        if path is not None and payload is not None:
            with suppress(OSError):
                os.utime(path)  # what is used stays longest
        return payload

    def payloads(self) -> Iterator[bytes]:
        """Yield the data of all entries, of whatever key, the one that was not used for longest first."""
        folder = self._folder()
        for path, _ in [] if folder is None else _files(folder):
            payload = _read(path) if re.fullmatch(_ENTRY, os.path.basename(path)) else None
            if payload is not None:
                yield payload

    def put(self, key: str, payload: bytes) -> None:
        """Keep bytes; the entries that were not used for longest go where the bound is passed."""
        path = self._path(key)
        data = _frame(payload)
        if path is None or len(data) > max_bytes():
            return
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as error:
            _log().info("nothing is kept in %s: %s", folder, error)
            _delete(temporary)
            return
        self._nbytes = None if self._nbytes is None else self._nbytes + len(data)
        if self._nbytes is None or self._nbytes > max_bytes():
            self._nbytes = _tidy(folder, max_bytes())

    def use(self) -> CacheUse:
        """Return the location and the size of the cache."""
        folder = private_cache_folder(self.name) if max_bytes() else None
        sizes = [] if folder is None else [status.st_size for _, status in _files(folder)]
        return CacheUse(folder, len(sizes), sum(sizes), max_bytes())

    def _folder(self) -> str | None:
        return _create_private_folder(self.name) if max_bytes() else None

    def _path(self, key: str) -> str | None:
        folder = self._folder()
        return None if folder is None else os.path.join(folder, hashlib.sha256(key.encode()).hexdigest())


def _log() -> Logger:
    import logging  # takes long, for what hardly ever happens

    return logging.getLogger(__name__)


def _frame(payload: bytes) -> bytes:
    return b"".join((_MAGIC, hashlib.sha256(payload).digest(), payload))


def _read(path: str) -> bytes | None:
    """Return the data of an entry; None where there is none, or a damaged one, which is dropped."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    payload = data[len(_MAGIC) + _DIGEST :]
    if data != _frame(payload):
        _log().warning("a damaged entry of the cache is dropped: %s", path)
        _delete(path)
        return None
    return payload


def _delete(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _files(folder: Path | str) -> list[tuple[str, os.stat_result]]:
    """Yield entries, and what other processes are writing, oldest first; files may go at any time."""
    files: list[tuple[str, os.stat_result]] = []
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):
                files.append((entry.path, entry.stat(follow_symlinks=False)))
    return sorted(files, key=lambda file: (file[1].st_mtime, file[0]))


def _tidy(folder: str, bound: int) -> int:
    """Delete abandoned files and, where entries pass the bound, the oldest; returns how many bytes are left."""
    now = time.time()
    files = _files(folder)
    nbytes = sum(status.st_size for _, status in files)
    most = bound if nbytes <= bound else int(bound * _KEPT_FRACTION)
    for path, status in files:
        is_temporary = path.endswith(".tmp")
        if now - status.st_mtime > _ABANDONED_SECONDS if is_temporary else nbytes > most:
            _delete(path)
            nbytes -= status.st_size
    return nbytes
