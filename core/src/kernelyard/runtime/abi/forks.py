"""Locks across fork(2): a child process has the one thread that forked, and none that would release what others held.

Source: POSIX, fork(); the standard library's logging does the same for its locks.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")
_KEPT: WeakSet[Any] = WeakSet()


def renewed_in_children(lock: T) -> T:
    """Return a lock (of `threading`) that is free in child processes, whoever holds it when a process forks.

    Anything else that can be referenced weakly and has a method `_at_fork_reinit` may take its place.

    Example:
        >>> from threading import Lock
        >>> lock = renewed_in_children(Lock())
        >>> lock.acquire()
        True
    """
    _KEPT.add(lock)
    return lock


def _renew() -> None:
    for each in list(_KEPT):
        each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
