"""Python's garbage collector, which compilation and the first run with new sizes pause."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_pauses: list[None] = []  # one for each pause that will end by enabling the collector


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, while many objects are made that will live: collection looks at each again.

    Example:
        >>> with collector_paused():
        ...     gc.isenabled()
        False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    if was_enabled:
        _pauses.append(None)
    try:
        yield
    finally:
        if was_enabled:
            _pauses.pop()
            gc.enable()


def _resume_in_child() -> None:
    """Enable the collector in a child process that was forked while another thread had paused it."""
    if _pauses:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)
