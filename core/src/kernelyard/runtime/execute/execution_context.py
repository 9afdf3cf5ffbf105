"""ExecutionContext: the memory that one running call has to itself; ContextPool: how many of them there may be."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from threading import Lock, get_ident, local
from time import monotonic
from typing import TYPE_CHECKING

from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.forks import renewed_in_children
from kernelyard.runtime.abi.memory import Workspace
from kernelyard.runtime.abi.module import BindContext
from kernelyard.runtime.execute.bound_program import AnyBoundProgram, BoundProgram
from kernelyard.runtime.execute.step_binder import StepBinder
from kernelyard.runtime.lru import LRU, CacheInfo, sum_infos
from kernelyard.runtime.program.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.executable import Executable

MIN_ARENA_NBYTES = 1 << 16


class ExecutionContext:
    """Memory that one running call uses at a time, and the programs that are bound to it.

    latest: by function, the bound program that ran its last call here, and the sizes that were known then.
    is_temporary: no pool has it. owner_thread: that which has it, or had it last. is_kept: and before that.
    """

    def __init__(self, is_temporary: bool = False, bound_program_type: type[BoundProgram] = BoundProgram) -> None:
        self.is_temporary = is_temporary
        self._bound_program_type = bound_program_type
        self.owner_thread: int | None = None
        self.is_kept = False
        self.latest: dict[object, tuple[tuple[int | None, ...], AnyBoundProgram]] = {}
        self._arena = memory.aligned_bytes(0)
        self._scratch = Workspace()
        self._bound_programs: dict[int, LRU[ExecutionPlan, AnyBoundProgram]] = {}  # by the program's identity
        self._binders: dict[int, StepBinder] = {}  # likewise; they keep the programs

    def bind(self, plan: ExecutionPlan, executable: Executable, threads: int) -> AnyBoundProgram:
        """Return the program of a plan bound to this context's memory; `max_plans` of each program are kept."""
        kept = self._bound_programs.setdefault(id(plan.program), LRU(executable.max_plans))
        return kept.get_or_make(plan, lambda: self._bind(plan, executable, threads))

    def forget(self) -> None:
        """Bind everything anew when it is next called."""
        for kept in self._bound_programs.values():
            kept.clear()
        self.latest.clear()

    def _bind(self, plan: ExecutionPlan, executable: Executable, threads: int) -> AnyBoundProgram:
        if plan.arena_nbytes > self._arena.nbytes:
            # Room to grow costs addresses only: pages that no plan touches are never there.
            self._arena = memory.aligned_bytes(max(plan.arena_nbytes, 2 * self._arena.nbytes, MIN_ARENA_NBYTES))
            self.forget()  # what is bound to the old arena would keep it
        binder = self._binders.get(id(plan.program))
        if binder is None:
            context = BindContext(
                threads,
                self._scratch,
                max_plans=executable.max_plans,
                is_deterministic=executable.is_deterministic,
                is_profiled=executable.is_profiled,
            )
            binder = self._binders[id(plan.program)] = StepBinder(plan.program, executable, context)
        return self._bound_program_type(plan, binder, self._arena)

    @property
    def nbytes(self) -> int:
        """Bytes of the arena and the scratch memory."""
        return self._arena.nbytes + self._scratch.nbytes

    def info(self) -> CacheInfo:
        """Return the counts of all bound programs."""
        return sum_infos(kept.info() for kept in list(self._bound_programs.values()))


# How often a context goes to who waits, and not to who comes: Python's own interval for threads. A thread that calls
# again and again goes on meanwhile, as waking another for each short call takes longer than the call.
HAND_OVER_SECONDS = 5e-3
# Who waits looks again after this time, if nobody told it of a context: Ctrl-C may have ended the call that would have.
LOOK_AGAIN_SECONDS = 0.5


class Turn:
    """Wait to be told by another thread; one thread waits at a time, and may be told for nothing.

    It is a pipe where there are any: the system then runs the thread that is told where the one that tells runs, which
    is about to wait itself. A thread that a lock wakes is put behind another running one as often as not, and a
    processor is idle until the system balances the two: three callers of 5 ms had 200 calls per second on two
    processors, and have 360. (Source: Linux, fs/pipe.c and kernel/sched/fair.c, WF_SYNC in wake_affine_idle.)

    Raises: OSError where the process may open no more files.
    """

    def __init__(self) -> None:
        self._is_told = False
        self._ends: tuple[int, ...] = ()
        self._ends = os.pipe()
        os.set_blocking(self._ends[0], False)
        self._poll = select.poll()
        self._poll.register(self._ends[0], select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Return once told, or after so many seconds."""
        if self._poll.poll(1e3 * seconds):
            with suppress(BlockingIOError):
                os.read(self._ends[0], 64)
        # Last, so that whoever writes from now on is read by the next wait, and before the thread looks for what it is
        # told of, so that who found it told has done enough. Always: Ctrl-C may have ended a `tell` before it wrote.
        self._is_told = False

    def tell(self) -> None:
        """Have the thread go on that waits."""
        if not self._is_told:
            self._is_told = True
            os.write(self._ends[1], b"!")

    def __del__(self) -> None:
        for end in self._ends:
            os.close(end)


class LockTurn(Turn):
    """The same by a lock, for systems without pipes that can be waited for, and processes without files to open."""

    def __init__(self) -> None:
        self._ends = ()
        self._lock = Lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        """Return once told, or after so many seconds."""
        self._lock.acquire(timeout=seconds)

    def tell(self) -> None:
        """Have the thread go on that waits."""
        with suppress(RuntimeError):  # another tells it at the same time
            if self._lock.locked():
                self._lock.release()


_TURNS = local()


def own_turn() -> Turn:
    """Return the turn of this thread, which waits for one pool at a time; a child process has turns of its own."""
    process = os.getpid()
    if getattr(_TURNS, "process", None) != process:
        try:
            _TURNS.turn = Turn() if hasattr(select, "poll") else LockTurn()
        except OSError:
            _TURNS.turn = LockTurn()
        _TURNS.process = process
    return _TURNS.turn


class ContextPool:
    """At most `size` contexts. A call acquires one and gives it back; while all are taken, others wait.

    Who gives a context back may acquire it again at once; every five milliseconds, one goes to who has waited
    longest instead.
    A thread that has a context already (an instrument or a Python step that calls the program again) does not wait: it
    might wait for itself. It gets a temporary one.

    Ctrl-C at any moment loses no context. Python looks for signals where a function of its own begins and after calls
    of C functions, not between other instructions: so contexts are taken by a `for` statement, and given back by one
    call of a C function, of which nothing is left undone. (Source: CPython, Python/bytecodes.c, CHECK_PERIODIC.)

    Example:
        >>> pool = ContextPool(2)
        >>> first = pool.acquire()
        >>> try:
        ...     pass  # the call
        ... finally:
        ...     pool.give_back(first)
        ...     if pool.waiters:
        ...         pool.tell(first)
        >>> pool.acquire() is first
        True
    """

    def __init__(self, size: int, make_context: Callable[[bool], ExecutionContext] = ExecutionContext) -> None:
        self.size = size
        self._make_context = make_context  # of whether it is a temporary one
        self._contexts: list[ExecutionContext] = []
        self._idle: list[ExecutionContext] = []
        self.give_back = self._idle.append  # a function of C; contexts that are not temporary only
        self._handed: list[ExecutionContext] = []  # at most one, for the first of those who wait: nobody overtakes it
        self._taken_idle = iter(self._idle.pop, None)  # each `next` takes the one given back last; IndexError: none
        self._taken_handed = iter(self._handed.pop, None)
        self._hand_over_at = 0.0
        self.waiters: deque[Turn] = deque()
        self._lock = Lock()  # while a context is made
        renewed_in_children(self)

    def _at_fork_reinit(self) -> None:
        """Leave those contexts behind that threads of the parent use, which are not in this process."""
        me = get_ident()
        mine = [each for each in self._contexts if each.owner_thread == me and not self._is_free(each)]
        self._idle += self._handed
        self._handed.clear()
        self._contexts = [*self._idle, *mine]
        self.waiters.clear()
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of contexts: as many as were ever in use at the same time."""
        return len(self._contexts)

    def __iter__(self) -> Iterator[ExecutionContext]:
        """Return the contexts, those in use included."""
        return iter(list(self._contexts))

    def acquire(self, limit: CallLimit | None = None) -> ExecutionContext:
        """Return a context that nobody else uses until it is given back: the one that was last, where there is one.

        Raises: CallTimeoutError, CallCancelledError where the limit ends the waiting.
        """
        me = get_ident()
        try:
            for context in self._taken_idle:
                context.is_kept = context.owner_thread == me
                context.owner_thread = me
                return context
        except IndexError:
            pass
        return self._make_or_wait(me, limit)

    def tell(self, given_back: ExecutionContext) -> None:
        """Let the first of those who wait look for a context; every five milliseconds, one is handed over to it.

        In between, it is not told of the context of a thread that calls again and again, as that thread is back first.
        """
        now = monotonic()
        if now >= self._hand_over_at:
            self._hand_over_at = now + HAND_OVER_SECONDS
            if not self._handed:
                with suppress(IndexError):
                    self._handed.extend(islice(self._taken_idle, 1))
        elif given_back.is_kept:
            return
        self._wake_first()

    def _wake_first(self) -> None:
        with suppress(IndexError):  # nobody waits any more
            self.waiters[0].tell()

    def _patience(self, is_first: bool, limit: CallLimit | None) -> float:
        """Return for how many seconds to wait: the first who waits may not be told before the next hand-over."""
        patience = LOOK_AGAIN_SECONDS if limit is None else limit.patience()
        untold = self._hand_over_at - monotonic()
        return min(patience, untold) if is_first and untold > 0 else patience

    def _is_free(self, context: ExecutionContext) -> bool:
        return context in self._idle or context in self._handed

    def _make_or_wait(self, me: int, limit: CallLimit | None) -> ExecutionContext:
        turn: Turn | None = None
        try:
            while True:
                is_first = turn is not None and self.waiters[0] is turn
                for source in (self._taken_handed, self._taken_idle) if is_first else (self._taken_idle,):
                    with suppress(IndexError):
                        for context in source:
                            context.is_kept = context.owner_thread == me
                            context.owner_thread = me
                            return context
                if self._make():
                    continue
                if any(context.owner_thread == me and not self._is_free(context) for context in list(self._contexts)):
                    return self._make_context(True)
                if limit is not None:
                    limit.check()
                if turn is None:
                    turn = own_turn()
                    self.waiters.append(turn)
                    continue  # what was given back before was told to nobody
                turn.wait(self._patience(is_first, limit))
        finally:
            if turn is not None:
                with suppress(ValueError):
                    self.waiters.remove(turn)
                self._wake_first()  # who is the first now may have to look, and sleeps as one that is not

    def _make(self) -> bool:
        """Make another context, where there may be more; it is idle then."""
        with self._lock:
            if len(self._contexts) >= self.size:
                return False
            context = self._make_context(False)
            self._idle.append(context)
            self._contexts.append(context)
            return True
