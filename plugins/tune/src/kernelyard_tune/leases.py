"""Leases of processor cores on this machine, so that measurements do not disturb each other.

A core is leased by a lock on a file (flock(2)), which the kernel takes back when the last process that holds it ends,
whatever ends it. Threads of one core share what they compute with, so that a core is leased as a whole. Source of which
threads are one core: Linux, Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from kernelyard_tune.errors import PoolError

TOPOLOGY = Path("/sys/devices/system/cpu")
POLL_SECONDS = 0.05


class Lease(NamedTuple):
    """Processors to run on, one of each core that is leased, and the open files that hold the locks."""

    processors: tuple[int, ...]
    files: tuple[int, ...]


def cores() -> dict[int, int]:
    """Return a processor of each core that this process may use, by the core's number: its first processor's.

    Example:
        >>> set(cores().values()) <= os.sched_getaffinity(0)
        True
    """
    found: dict[int, int] = {}
    for processor in sorted(os.sched_getaffinity(0)):
        found.setdefault(_first_of_core(processor), processor)
    return found


@contextmanager
def lease(count: int, among: Sequence[int] | None = None) -> Iterator[Lease]:
    """Hold cores until the block ends, and wait until as many are free. among: numbers of cores (None: `cores()`).

    Raises: PoolError where there are not so many.
    """
    known = cores()
    wanted = [core for core in (known if among is None else among) if core in known]
    if count > len(wanted):
        raise PoolError("more cores are asked for than a worker may use", found=str(count), expected=f"{len(wanted)}")
    folder = _folder()
    while True:
        with ExitStack() as held:
            leased: dict[int, int] = {}
            for core in wanted:
                file = os.open(folder / f"core-{core}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                held.callback(os.close, file)
                if len(leased) < count and _is_locked(file):
                    leased[core] = file
            if len(leased) == count:
                yield Lease(tuple(known[core] for core in leased), tuple(leased.values()))
                return
        time.sleep(POLL_SECONDS)  # all of them are given back meanwhile: nobody waits for who waits


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _first_of_core(processor: int) -> int:
    try:
        text = (TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
        return int(text.replace("-", ",").split(",")[0])
    except (OSError, ValueError):  # no such file in some containers: each is taken for a core
        return processor


def _folder() -> Path:
    """Return the folder of the locks: one for all processes of a user, whatever their caches. Raises: PoolError."""
    folder = Path(tempfile.gettempdir(), f"kernelyard-leases-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PoolError("no core can be leased", where=str(folder), found=error.strerror) from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o022:
        raise PoolError("no core can be leased: others can write to the folder of the locks", where=str(folder))
    return folder
