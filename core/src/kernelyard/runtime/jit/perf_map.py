"""Names of generated code for profilers of the system: `perf` and others read `/tmp/perf-PID.map`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from kernelyard.variables import EnvironmentVariable

PERF_MAP = EnvironmentVariable(
    "KERNELYARD_PERF_MAP",
    "1: list generated kernels in `/tmp/perf-PID.map`, so that `perf` and `py-spy` see their names",
    "off",
)
FOLDER = "/tmp"  # where perf looks, whatever TMPDIR says


class MappedFunction(NamedTuple):
    """A function in memory."""

    address: int
    nbytes: int
    name: str


def note(functions: Callable[[], Iterable[MappedFunction]]) -> None:
    """List functions in this process's map, where that is asked for; a map that cannot be written is left alone."""
    if PERF_MAP.get() != "1":
        return
    lines = [f"{each.address:x} {each.nbytes:x} kernelyard:{each.name}\n" for each in functions()]
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW  # the folder is everybody's
        descriptor = os.open(f"{FOLDER}/perf-{os.getpid()}.map", flags, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            if os.fstat(descriptor).st_uid == os.getuid():
                file.writelines(lines)
