"""ContextPool: a bounded pool of execution contexts with a fair queue of waiting callers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from threading import Lock, get_ident
from time import monotonic
from typing import TYPE_CHECKING

from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.execute.execution_context import ExecutionContext

if TYPE_CHECKING:
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.thread_event import ThreadEvent

# How often a context goes to the first waiter instead of the next caller: CPython's switch interval for threads. In
# between, a thread that calls repeatedly keeps its context, as waking another thread takes longer than a short call.
HANDOFF_SECONDS = 5e-3
# Waiters check again after this time even if nobody woke them: Ctrl-C may have ended the call that should have.
RECHECK_SECONDS = 0.5


class ContextPool:
    """At most `size` contexts, each acquired by one call at a time; further callers wait in order of arrival.

    A thread that releases a context may acquire it again at once (barging), but every five milliseconds one context is
    handed off to the thread that has waited longest. A thread that holds a context already, because an instrument or a
    Python step calls the program again, would wait for itself: it gets a temporary context.

    Ctrl-C loses no context. CPython checks for signals when a Python function begins and after calls of C functions,
    not between other instructions; so a context is taken by a `for` statement, and released by one call of a C
    function. (Source: CPython, Python/bytecodes.c, CHECK_PERIODIC.) Hence callers release and notify in two steps.

    Example:
        >>> pool = ContextPool(2)
        >>> first = pool.acquire()
        >>> try:
        ...     pass  # the call
        ... finally:
        ...     pool.release(first)
        ...     if pool.waiters:
        ...         pool.notify(first)
        >>> pool.acquire() is first
        True
    """

    def __init__(self, size: int, make_context: Callable[[bool], ExecutionContext] = ExecutionContext) -> None:
        self.size = size
        self._make_context = make_context  # its argument: whether the context is a temporary one
        self._contexts: list[ExecutionContext] = []
        self._idle: list[ExecutionContext] = []
        self.release = self._idle.append  # a C function; not for temporary contexts
        self._handed_off: list[ExecutionContext] = []  # at most one, reserved for the first waiter
        self._pop_idle = iter(self._idle.pop, None)  # `next` takes the context released last, or raises IndexError
        self._pop_handed_off = iter(self._handed_off.pop, None)
        self._next_handoff = 0.0  # on the monotonic clock
        self.waiters: deque[ThreadEvent] = deque()  # in order of arrival
        self._sentinel: ThreadEvent | None = None  # the last first waiter that wakes up when a hand-off is due
        self._lock = Lock()  # held while a context is created
        renewed_in_children(self)

    def _at_fork_reinit(self) -> None:
        """Drop the contexts that other threads of the parent were using: those threads do not exist in the child."""
        me = get_ident()
        mine = [each for each in self._contexts if each.owner_thread == me and not self._is_free(each)]
        self._idle += self._handed_off
        self._handed_off.clear()
        self._contexts = [*self._idle, *mine]
        self.waiters.clear()
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of contexts: the most that were ever in use at the same time."""
        return len(self._contexts)

    def __iter__(self) -> Iterator[ExecutionContext]:
        """Iterate over all contexts, including those in use."""
        return iter(list(self._contexts))

    def acquire(self, limit: CallLimit | None = None) -> ExecutionContext:
        """Return a context for exclusive use until it is released; prefer the one released last.

        Raises: CallTimeoutError, CallCancelledError if the limit is reached while waiting.
        """
        me = get_ident()
        try:
            for context in self._pop_idle:
                context.is_reacquired = context.owner_thread == me
                context.owner_thread = me
                return context
        except IndexError:
            pass
        return self._make_or_wait(me, limit)

    def notify(self, released: ExecutionContext) -> None:
        """Wake the first waiter after a release; every five milliseconds, hand a context off to it.

        In between it is not woken if the releasing thread calls repeatedly, as that thread would be back first.
        """
        now = monotonic()
        if now >= self._next_handoff:
            self._next_handoff = now + HANDOFF_SECONDS
            if not self._handed_off:
                with suppress(IndexError):
                    self._handed_off.extend(islice(self._pop_idle, 1))
        elif released.is_reacquired and self._sentinel in tuple(islice(self.waiters, 1)):
            return  # that one looks again by itself
        self._wake_first()

    def _wake_first(self) -> None:
        with suppress(IndexError):  # nobody waits any more
            self.waiters[0].set()

    def _wait(self, event: ThreadEvent, is_first: bool, limit: CallLimit | None) -> None:
        """Wait for a notification; the first waiter may not get one before the next hand-off is due."""
        seconds = RECHECK_SECONDS if limit is None else limit.wait_seconds()
        if is_first:
            self._sentinel = event
            until_handoff = self._next_handoff - monotonic()
            seconds = min(seconds, until_handoff) if until_handoff > 0 else seconds
        event.wait(seconds)

    def _leave_queue(self, event: ThreadEvent) -> None:
        with suppress(ValueError):
            self.waiters.remove(event)
        if self._idle or self._handed_off:  # released before the next in the queue was the first
            self._wake_first()

    def _is_free(self, context: ExecutionContext) -> bool:
        return context in self._idle or context in self._handed_off

    def _make_or_wait(self, me: int, limit: CallLimit | None) -> ExecutionContext:
        event: ThreadEvent | None = None
        try:
            while True:
                is_first = event is not None and self.waiters[0] is event
                for source in (self._pop_handed_off, self._pop_idle) if is_first else (self._pop_idle,):
                    with suppress(IndexError):
                        for context in source:
                            context.is_reacquired = context.owner_thread == me
                            context.owner_thread = me
                            return context
                if self._make():
                    continue
                if any(context.owner_thread == me and not self._is_free(context) for context in list(self._contexts)):
                    return self._make_context(True)
                if limit is not None:
                    limit.check()
                if event is None:
                    from kernelyard.runtime.execute.thread_event import thread_event  # most programs never wait

                    event = thread_event()
                    self.waiters.append(event)
                    continue  # a context may have been released before this thread was in the queue
                self._wait(event, is_first, limit)
        finally:
            if event is not None:
                self._leave_queue(event)

    def _make(self) -> bool:
        """Create one more idle context, unless the pool has as many as it may."""
        with self._lock:
            if len(self._contexts) >= self.size:
                return False
            context = self._make_context(False)
            self._idle.append(context)
            self._contexts.append(context)
            return True
