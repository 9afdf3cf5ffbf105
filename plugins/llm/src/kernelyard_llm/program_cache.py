"""Compiled models, kept on disk as artifacts: a program that loads the same file again compiles nothing.

An artifact belongs to the files of the model, to the options, and to all that compiled it. Files are known by size,
times and number, and by their ends: who writes to a file, and sets its time back, changes the time of its state.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import kernelyard
from kernelyard import Executable
from kernelyard.errors import KernelyardError
from kernelyard.runtime.api import compiler_facts, plugin_cache
from kernelyard_llm.description import KEY

DISTRIBUTION = "kernelyard-llm"
# Options of `kernelyard.compile` that are data, and say all that they mean.
_OPTIONS = {"target", "backends", "precision", "exclude_patterns"}
_SUFFIX = ".kyar"
_BESIDE_WEIGHTS = 16 << 20  # bytes: more than programs, their code and the tokenizer take
_END = 1 << 20  # bytes at either end of a file that are compared
_log = logging.getLogger(__name__)


def recall_program(key: str | None, threads: int | None) -> Executable | None:
    """Return the program of a key; None where none is kept, or what is there is no whole one, which is dropped."""
    folder = None if key is None else plugin_cache(DISTRIBUTION)
    if folder is None or not _is_own_file(path := folder / f"{key}{_SUFFIX}"):
        return None
    try:
        found = kernelyard.load(path, threads)
    except KernelyardError as error:
        _log.warning("a cached program that cannot be loaded is dropped: %s", error)
        found = None
    is_model = found is not None and KEY in found.metadata
    with suppress(OSError):  # another process may have dropped it
        if is_model:
            os.utime(path)  # what is used stays longest
        else:
            path.unlink()
    return found if is_model else None


def remember_program(key: str | None, executable: Executable) -> None:
    """Keep a program, where it can be saved, and is within the limit of caches."""
    size = sum(each.nbytes for each in executable.constants.values())
    folder = None if key is None else plugin_cache(DISTRIBUTION, size + _BESIDE_WEIGHTS)
    if folder is None:
        return
    try:
        executable.save(folder / f"{key}{_SUFFIX}")
    except (KernelyardError, OSError) as error:
        _log.info("a program is not kept: %s", error)


def program_key(path: Path, products: str | None, cache_dtype: str | None, options: Mapping[str, Any]) -> str | None:
    """Return the key of a model that is compiled in this way; None where nothing is kept, or options are not data."""
    if plugin_cache(DISTRIBUTION) is None or not set(options) <= _OPTIONS:
        return None
    try:
        files = [_describe(each) for each in _files(path)]
        text = json.dumps([files, products, cache_dtype, dict(options), compiler_facts()], sort_keys=True)
    except (OSError, TypeError, ValueError):  # no such file, or an option that is an object
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _files(path: Path) -> list[Path]:
    """Return the files of a model: one, or those of its folder."""
    return [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())


def _describe(path: Path) -> list[Any]:
    """Return what tells the contents of a file from others, without reading all of it. Raises: OSError."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        begin = file.read(_END)
        file.seek(max(0, status.st_size - _END))
        ends = hashlib.sha256(begin + file.read(_END)).hexdigest()
    return [str(path.resolve()), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, ends]


def _is_own_file(path: Path) -> bool:
    """Return True for a regular file of this user's, which nobody else can write to: code is loaded from it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not is_shared
