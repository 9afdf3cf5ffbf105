"""ExecutionContext: the memory that one running call has to itself; ContextPool: how many of them there may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Condition, get_ident
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
    is_temporary: no pool has it.
    """

    def __init__(self, is_temporary: bool = False, bound_program_type: type[BoundProgram] = BoundProgram) -> None:
        self.is_temporary = is_temporary
        self._bound_program_type = bound_program_type
        self.owner_thread: int | None = None
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


# How often a context goes to who waits, and not to who comes. A thread that calls again and again goes on meanwhile, as
# waking another for each short call takes longer than the call.
HAND_OVER_SECONDS = 1e-3


class ContextPool:
    """At most `size` contexts. A call acquires one and releases it; while all are taken, others wait.

    Who releases a context may acquire it again at once; every millisecond, one goes to who waits instead.
    A thread that has a context already (an instrument or a Python step that calls the program again) does not wait: it
    might wait for itself. It gets a temporary one.

    Example:
        >>> pool = ContextPool(2)
        >>> first = pool.acquire()
        >>> pool.release(first)
        >>> pool.acquire() is first
        True
    """

    def __init__(self, size: int, make_context: Callable[[bool], ExecutionContext] = ExecutionContext) -> None:
        self.size = size
        self._make_context = make_context  # of whether it is a temporary one
        self._contexts: list[ExecutionContext] = []
        self._idle: list[ExecutionContext] = []
        self._handed: list[ExecutionContext] = []  # for those who wait, so that nobody overtakes them for ever
        self._hand_over_at = 0.0
        self._waiting = 0
        self._is_told = False  # one of those who wait, of an idle context
        self._changed = Condition()
        renewed_in_children(self)

    def _at_fork_reinit(self) -> None:
        """Leave those contexts behind that threads of the parent use, which are not in this process."""
        me = get_ident()
        self._contexts = [each for each in self._contexts if each.owner_thread in (None, me)]
        self._idle = [each for each in self._contexts if each.owner_thread is None]
        self._handed, self._waiting, self._is_told, self._changed = [], 0, False, Condition()

    def __len__(self) -> int:
        """Return the number of contexts: as many as were ever in use at the same time."""
        return len(self._contexts)

    def __iter__(self) -> Iterator[ExecutionContext]:
        """Return the contexts, those in use included."""
        return iter(list(self._contexts))

    def acquire(self, limit: CallLimit | None = None) -> ExecutionContext:
        """Return a context that nobody else uses until `release`: the one released last, where there is one.

        Raises: CallTimeoutError, CallCancelledError where the limit ends the waiting.
        """
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._make_or_wait(limit)
        context.owner_thread = get_ident()
        return context

    def release(self, context: ExecutionContext) -> None:
        """Let others have a context."""
        context.owner_thread = None
        if context.is_temporary:
            return
        if self._waiting and monotonic() >= self._hand_over_at:
            with self._changed:
                self._hand_over_at = monotonic() + HAND_OVER_SECONDS
                self._handed.append(context)
                self._changed.notify()
            return
        self._idle.append(context)
        # Whoever begins to wait raises the count first, and looks at the idle contexts afterwards.
        if self._waiting and not self._is_told:
            with self._changed:
                self._tell_one()

    def _tell_one(self) -> None:
        """Let one of those who wait look for an idle context; under the lock."""
        self._is_told = self._waiting > 0
        self._changed.notify()

    def _make_or_wait(self, limit: CallLimit | None) -> ExecutionContext:
        me = get_ident()
        with self._changed:
            if self._handed:
                return self._handed.pop()
            if len(self._contexts) < self.size:
                self._contexts.append(self._make_context(False))
                return self._contexts[-1]
            if any(context.owner_thread == me for context in self._contexts):
                return self._make_context(True)
            self._waiting += 1
            try:
                while True:
                    if self._handed:
                        return self._handed.pop()
                    with suppress(IndexError):
                        return self._idle.pop()
                    if limit is not None:
                        limit.check()
                    self._changed.wait(limit and limit.patience())
                    self._is_told = False
            finally:
                self._waiting -= 1
                if self._idle:  # released while this thread was told
                    self._tell_one()
