"""Default number of threads of a run."""

from __future__ import annotations

import os


def default_threads() -> int:
    """Return OMP_NUM_THREADS where it is set, else the number of processors that this process may use."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if text.isdigit() and int(text) > 0:
        return int(text)
    return processors()


def processors() -> int:
    """Count the processors that this process may use: its affinity, where the system has that."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
