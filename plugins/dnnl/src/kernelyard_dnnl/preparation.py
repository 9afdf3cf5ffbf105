"""Preparation of a plan before its first run: code generation and constant packing, possibly beside planning.

All of it is native code that lets Python go on, and a plan consists of many such pieces: further processors take them
while one chooses layouts and primitives.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from kernelyard.runtime.api import processors

MAX_THREADS = 8  # constants are copied no quicker by more


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


class Preparation:
    """Tasks for as many threads as there are processors, `MAX_THREADS` at most; one of them is that which finishes."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Task | None] = SimpleQueue()
        self._begun: list[Task] = []
        self._threads: list[Thread] = []
        self._max_threads: int | None = None  # asked of the system once for all that is begun together

    @property
    def is_busy(self) -> bool:
        """True from the first `begin` to the end of `finish`."""
        return bool(self._begun)

    def begin(self, work: Callable[[], object]) -> Task:
        """Have something done until `finish` at the latest; calling what this returns waits for it alone."""
        task = Task(work)
        self._begun.append(task)
        self._waiting.put(task)
        if self._max_threads is None:
            self._max_threads = min(processors(), MAX_THREADS) - 1
        if len(self._threads) < self._max_threads:
            self._start_thread()
        return task

    def finish(self) -> None:
        """Do what is left, and wait until all is done.

        Raises: what the first piece of work that failed raised.
        """
        try:
            while task := self._waiting.get_nowait():
                task()
        except Empty:
            pass
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        begun, self._begun, self._threads, self._max_threads = self._begun, [], [], None
        for task in begun:
            if task.error is not None:
                raise task.error

    def _start_thread(self) -> None:
        thread = Thread(target=self._serve, name="kernelyard dnnl", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no further one
            return
        self._threads.append(thread)

    def _serve(self) -> None:
        while task := self._waiting.get():
            task()
