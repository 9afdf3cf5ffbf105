"""Count the processors that a process may use; the default number of threads of a run.

Source: sched_getaffinity(2), and the kernel's documentation of cgroups: "CPU" (v2, `cpu.max`) and "CFS Bandwidth
Control" (v1, `cpu.cfs_quota_us`).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache

_CGROUPS, _OWN_CGROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"


def default_threads() -> int:
    """Return OMP_NUM_THREADS where it is set, else the number of processors that this process may use."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if text.isdigit() and int(text) > 0:
        return int(text)
    return processors()


def threads_of_a_run(wanted: int | None = None) -> int:
    """Return how many threads a run divides its work among: `wanted`, else the default; no more than processors.

    Parts without a processor of their own would wait for one: with two processors, a library that cuts a matrix product
    for four threads takes up to half as long again, as its parts are smaller and come in turns.
    """
    return min(wanted or default_threads(), processors())


def processors() -> int:
    """Count the processors that this process may use: its affinity, limited by its container's quota, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(count, _most_by_quota(_CGROUPS, _OWN_CGROUPS)))


@cache
def _most_by_quota(cgroups: str, own_cgroups: str) -> int:
    """Return the least quota, rounded up; read once, as files are slow beside what asks for it."""
    return min((math.ceil(quota) for quota in _quotas(cgroups, own_cgroups)), default=sys.maxsize)


def _quotas(cgroups: str, own_cgroups: str) -> Iterator[float]:
    """Yield the quotas of this process's control groups and of those that they are in, in processors."""
    try:
        lines = _text_of(own_cgroups).splitlines()
    except OSError:  # not Linux, or no /proc
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from _read_quotas(cgroups, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _read_quotas(f"{cgroups}/{controllers}", path, _quota_v1)


def _read_quotas(root: str, path: str, read: Callable[[str], float]) -> Iterator[float]:
    # A container may see its own group as the root of the file system, under whatever path the host has for it.
    names = [name for name in path.split("/") if name]
    for depth in range(len(names), -1, -1):
        try:
            yield read(os.path.join(root, *names[:depth]))
        except (OSError, ValueError):  # no such file, or "max"
            continue


def _quota_v2(group: str) -> float:
    quota, period = _text_of(f"{group}/cpu.max").split()
    return int(quota) / int(period)


def _quota_v1(group: str) -> float:
    quota = int(_text_of(f"{group}/cpu.cfs_quota_us"))
    if quota <= 0:  # none
        raise ValueError(quota)
    return quota / int(_text_of(f"{group}/cpu.cfs_period_us"))


def _text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
