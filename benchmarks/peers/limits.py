"""Limits that a server may set: a set of processors, and a CPU quota. Processes started meanwhile inherit them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CPU_GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))  # v2, v1
PERIOD = 100_000  # microseconds


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep this process, and those that it starts, on one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def cpu_quota(quota: float) -> Iterator[None]:
    """Keep this process, and those that it starts, in a control group with a quota of so many processors.

    Raises: OSError where the machine does not let one be made.
    """
    root = next((root for root in CPU_GROUPS if (root / "cgroup.procs").exists()), None)
    if root is None:
        raise FileNotFoundError("no file system of control groups")
    group = root / f"kernelyard-bench-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{int(quota * PERIOD)} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(process)
        group.rmdir()
