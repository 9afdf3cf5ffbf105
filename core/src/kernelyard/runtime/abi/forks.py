"""Locks across fork(2): a child process has the one thread that forked, and none that would release what others held.

Python locks are reset in the child. Locks of native libraries cannot be: a fork waits for threads that may hold one.
Source: POSIX, fork(); the standard library's logging does the same for its locks.
"""

from __future__ import annotations

import os
import time
from threading import RLock, get_ident
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")
_KEPT: WeakSet[Any] = WeakSet()


def renewed_in_children(lock: T) -> T:
    """Return a `threading` lock that is free in child processes, even if another thread holds it during the fork.

    Anything else that can be referenced weakly and has a method `_at_fork_reinit` may take its place.

    Example:
        >>> from threading import Lock
        >>> lock = renewed_in_children(Lock())
        >>> lock.acquire()
        True
    """
    _KEPT.add(lock)
    return lock


class ForkDelay:
    """Makes forks wait while threads are inside: they plan, for which they import modules and call libraries that have
    locks.

    Enter before any lock is taken. Who is inside may fork.

    Example:
        >>> with no_fork_during:
        ...     import json
    """

    _POLL_SECONDS = 2e-4

    def __init__(self) -> None:
        self._inside: list[int] = []  # threads
        self._entrance = RLock()  # closed while a process forks

    def __enter__(self) -> None:
        with self._entrance:
            self._inside.append(get_ident())

    def __exit__(self, *error: object) -> None:
        self._inside.remove(get_ident())

    def before_fork(self) -> None:
        """Let nobody in, and wait until all others are out."""
        self._entrance.acquire()
        me = get_ident()
        while any(thread != me for thread in self._inside):
            time.sleep(self._POLL_SECONDS)

    def after_fork(self) -> None:
        """Let everybody in."""
        self._entrance.release()


no_fork_during = ForkDelay()


def _renew() -> None:
    no_fork_during.after_fork()
    for each in list(_KEPT):
        each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=no_fork_during.before_fork, after_in_parent=no_fork_during.after_fork, after_in_child=_renew
    )
