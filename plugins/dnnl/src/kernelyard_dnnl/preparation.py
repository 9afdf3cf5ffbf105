"""Preparation of a plan before its first run: code generation and constant packing, possibly beside planning.

All of it is native code that lets Python go on, and a plan consists of many such pieces: further processors take them
while one chooses layouts and primitives.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from kernelyard.runtime.api import processors, renewed_in_children

MAX_THREADS = 8  # constants are copied no faster by more
# A thread without work ends after this time. While sizes are new all the time there are the same threads: malloc gives
# new ones, of which several live for a moment, arenas in turn, and in each what was freed there stays.
IDLE_SECONDS = 1.0


class Task:
    """Work that is done once, by whoever calls it first; who calls it meanwhile waits. `error`: what it raised.

    Example:
        >>> done = []
        >>> task = Task(lambda: done.append("work"))
        >>> task()
        >>> task()
        >>> done
        ['work']
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._lock = Lock()
        self.error: Exception | None = None

    def __call__(self) -> None:
        with self._lock:
            work, self._work = self._work, None
            try:
                if work is not None:
                    work()
            except Exception as error:  # raised where somebody waits for all
                self.error = error


class Helpers:
    """Threads that take part in preparations, for all of this process; they end when nothing is to be done for long."""

    def __init__(self) -> None:
        renewed_in_children(self)
        self._at_fork_reinit()

    def _at_fork_reinit(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = Lock()
        self.count = 0

    def call(self, work: Callable[[], object], most: int) -> None:
        """Have one of at most so many threads call `work`, which raises nothing; of none, nobody does."""
        if not most:
            return
        self._calls.put(work)
        with self._lock:
            if self.count >= most:
                return
            self.count += 1
        try:
            Thread(target=self._serve, name="kernelyard dnnl", daemon=True).start()
        except RuntimeError:  # the system has no further one
            with self._lock:
                self.count -= 1

    def _serve(self) -> None:
        while True:
            with suppress(Empty):
                while True:
                    self._calls.get(timeout=IDLE_SECONDS)()
            with self._lock:  # who puts something there afterwards sees that this thread has ended
                if self._calls.empty():
                    self.count -= 1
                    return


_HELPERS = Helpers()


class Preparation:
    """Tasks for as many threads as there are processors, `MAX_THREADS` at most; one of them is that which finishes."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Task] = SimpleQueue()
        self._begun: list[Task] = []
        self._max_helpers: int | None = None  # asked of the system once for all that is begun together

    @property
    def is_busy(self) -> bool:
        """True from the first `begin` to the end of `finish`."""
        return bool(self._begun)

    def begin(self, work: Callable[[], object]) -> Task:
        """Have something done until `finish` at the latest; calling what this returns waits for it alone."""
        task = Task(work)
        self._begun.append(task)
        self._waiting.put(task)
        if self._max_helpers is None:
            self._max_helpers = min(processors(), MAX_THREADS) - 1
        _HELPERS.call(self._do_next, self._max_helpers)
        return task

    def finish(self) -> None:
        """Do what is left, and wait until all is done.

        Raises: what the first piece of work that failed raised.
        """
        while self._do_next():
            pass
        begun, self._begun, self._max_helpers = self._begun, [], None
        for task in begun:
            task()  # a helper may be at it
        for task in begun:
            if task.error is not None:
                raise task.error

    def _do_next(self) -> bool:
        """Do one of the tasks that nobody has taken; False where there is none."""
        try:
            task = self._waiting.get_nowait()
        except Empty:
            return False
        task()
        return True
