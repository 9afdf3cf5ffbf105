"""Names of generated code for profilers of the system: `perf` and others read a file `perf-PID.map`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

FOLDER = "/tmp"  # where perf looks, whatever TMPDIR says


class MappedFunction(NamedTuple):
    """A function in memory."""

    address: int
    nbytes: int
    name: str


def add_to_perf_map(functions: Iterable[MappedFunction]) -> None:
    """List functions in this process's map; one that cannot be written is left alone."""
    lines = [f"{each.address:x} {each.nbytes:x} kernelyard:{each.name}\n" for each in functions]
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW  # the folder is everybody's
        descriptor = os.open(f"{FOLDER}/perf-{os.getpid()}.map", flags, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            if os.fstat(descriptor).st_uid == os.getuid():
                file.writelines(lines)
