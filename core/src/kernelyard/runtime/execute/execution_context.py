"""ExecutionContext: the memory of one running call, and the programs that are bound to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.memory import Workspace
from kernelyard.runtime.abi.module import BindContext
from kernelyard.runtime.execute.bound_program import AnyBoundProgram, BoundProgram
from kernelyard.runtime.execute.step_binder import StepBinder
from kernelyard.runtime.execute.step_errors import RefusedError
from kernelyard.runtime.lru import LRU, CacheInfo, sum_infos
from kernelyard.runtime.program.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from kernelyard.runtime.execute.compiled_model import CompiledModel

MIN_ARENA_NBYTES = 1 << 16


class ExecutionContext:
    """Memory that one running call uses at a time, and the programs that are bound to it.

    Attributes:
        latest: by function, the bound program of its last call in this context, and the sizes known then.
        is_temporary: the context belongs to no pool.
        owner_thread: the thread that has acquired the context, or was the last to.
        is_reacquired: the owner is the thread that had the context before.
    """

    def __init__(self, is_temporary: bool = False, bound_program_type: type[BoundProgram] = BoundProgram) -> None:
        self.is_temporary = is_temporary
        self._bound_program_type = bound_program_type
        self.owner_thread: int | None = None
        self.is_reacquired = False
        self.latest: dict[object, tuple[tuple[int | None, ...], AnyBoundProgram]] = {}
        self._arena = memory.aligned_bytes(0)
        self._scratch = Workspace()
        self._bound_programs: dict[int, LRU[ExecutionPlan, AnyBoundProgram]] = {}  # by the program's identity
        self._binders: dict[int, StepBinder] = {}  # likewise; they keep the programs

    def bind(self, plan: ExecutionPlan, executable: CompiledModel, threads: int) -> AnyBoundProgram:
        """Return the program of a plan bound to this context's memory; `max_plans` of each program are kept."""
        kept = self._bound_programs.setdefault(id(plan.program), LRU(executable.max_plans))
        return kept.get_or_make(plan, lambda: self._bind(plan, executable, threads))

    def unbind(self, plan: ExecutionPlan) -> None:
        """Drop the bound program of a plan, which may be running: then it is freed when it ends."""
        kept = self._bound_programs.get(id(plan.program))
        bound = kept.pop(plan) if kept else None
        for function, (_, latest) in list(self.latest.items()):
            if latest is bound:
                self.latest.pop(function, None)

    def forget(self) -> None:
        """Drop all bound programs; each is bound again by its next call."""
        for kept in self._bound_programs.values():
            kept.clear()
        self.latest.clear()

    def _bind(self, plan: ExecutionPlan, executable: CompiledModel, threads: int) -> AnyBoundProgram:
        if plan.arena_nbytes > self._arena.nbytes:
            # Spare room costs address space only: pages that no plan touches are never mapped.
            self._arena = memory.aligned_bytes(max(plan.arena_nbytes, 2 * self._arena.nbytes, MIN_ARENA_NBYTES))
            self.forget()  # programs bound to the old arena keep it alive
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
        try:
            return self._bound_program_type(plan, binder, self._arena)
        except RefusedError as refused:
            from kernelyard.runtime.execute.fallback import fall_back  # few libraries refuse anything

            plan = fall_back(plan, refused, executable)
        return self._bind(plan, executable, threads)

    @property
    def nbytes(self) -> int:
        """Bytes of the arena and the scratch memory."""
        return self._arena.nbytes + self._scratch.nbytes

    def info(self) -> CacheInfo:
        """Return the cache statistics of all bound programs, summed."""
        return sum_infos(kept.info() for kept in list(self._bound_programs.values()))
