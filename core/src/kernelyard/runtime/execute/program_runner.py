"""ProgramRunner: run a program on arrays; VM functions run their blocks by it, too."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.errors import NoImplementationError
from kernelyard.runtime.abi.forks import no_fork_during
from kernelyard.runtime.abi.memory import HEAP_TRIMMER
from kernelyard.runtime.lru import LRU, CacheInfo
from kernelyard.runtime.program.execution_plan import NOTHING, ExecutionPlan, ProgramMemory, Shapes
from kernelyard.runtime.program.program import Program

if TYPE_CHECKING:
    from kernelyard.runtime.device.array import AnyArray
    from kernelyard.runtime.execute.bound_program import Outputs
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.run_environment import RunEnvironment

Sizes = tuple[int | None, ...]
"""Of a program's symbols, as a VM function knows them; none where the shapes of the inputs say them all."""


class ProgramRunner:
    """Finds the execution plan for the shapes of some arrays, and an execution context to run it in.

    A call of a small program takes about a microsecond. So the bound program that ran last is tried first
    (`try_fast_path`): it knows whether the values are NumPy arrays of its shapes and dtypes, as they usually are.
    """

    def __init__(self, environment: RunEnvironment, program: Program) -> None:
        self._environment = environment
        self._contexts = environment.contexts
        self._program = program
        self._key = object()  # in contexts: they are in the runner's hands, and must not have it in theirs
        self._memory = ProgramMemory(program)
        self._plans: LRU[tuple[Shapes, Sizes], ExecutionPlan] = LRU(environment.executable.max_plans)

    def try_fast_path(self, values: Sequence[Any], sizes: Sizes = ()) -> Sequence[AnyArray] | None:
        """Return the results where the values and the sizes fit the call before; else None."""
        environment, contexts = self._environment, self._contexts
        context = contexts.acquire()
        try:
            latest = context.latest.get(self._key)
            if latest is None or latest[0] != sizes or environment.step_hook is not None:
                return None
            return latest[1].try_fast_path(*values)
        except NoImplementationError:  # `_run_prepared` meets it again, and falls back
            return None
        finally:
            if not context.is_temporary:
                contexts.release(context)
            if contexts.waiters:
                contexts.notify(context)

    def run(
        self,
        arrays: Sequence[AnyArray],
        symbols: Mapping[str, int] = NOTHING,
        limit: CallLimit | None = None,
        outputs: Outputs = (),
    ) -> Sequence[AnyArray]:
        """Return the results for arrays of the inputs' dtypes; `symbols`: sizes that no shape of theirs tells.

        limit and outputs: see `AnyBoundProgram.run`; outputs may be of other shapes. Raises: OutputError, ...
        """
        sizes = tuple(map(symbols.get, self._program.symbols)) if symbols else ()
        results = self.try_fast_path(arrays, sizes) if limit is None and not outputs else None
        return self._run_prepared(arrays, symbols, sizes, limit, outputs) if results is None else results

    def prepare(self, sets: Sequence[Shapes], callers: int = 1) -> None:
        """Do what the first calls with such sets of shapes do before they run, for so many calls at the same time.

        Raises: InputShapeError, ShapeError, ExecutionError.
        """
        plans = [plan for shapes in sets if not (plan := self._plan(shapes, NOTHING, ())).is_empty]
        plans.sort(key=lambda plan: -plan.arena_nbytes)  # an arena that grows drops what is bound to it
        contexts = [self._contexts.acquire() for _ in range(min(callers, self._contexts.size))]
        try:
            for context in contexts:
                for plan in plans:
                    with no_fork_during:
                        context.bind(plan, self._environment.executable, self._environment.threads)
        finally:
            for context in contexts:
                if not context.is_temporary:
                    self._contexts.release(context)
                if self._contexts.waiters:
                    self._contexts.notify(context)

    def info(self) -> CacheInfo:
        """Return the counts of the program's plans."""
        return self._plans.info()

    def recent_shapes(self) -> list[Shapes]:
        """See `FunctionRunner.recent_shapes`."""
        return [shapes for shapes, _ in self._plans]

    def retain(self, kept: Container[Shapes]) -> None:
        """Forget the plans for other shapes than these, and what is bound to them."""
        for key in self._plans:
            plan = self._plans.pop(key) if key[0] not in kept else None
            if plan is not None:
                for context in self._contexts:
                    with no_fork_during:
                        context.unbind(plan)

    def _plan(self, shapes: Shapes, symbols: Mapping[str, int], sizes: Sizes) -> ExecutionPlan:
        def make() -> ExecutionPlan:
            if len(self._plans) >= self._environment.executable.max_plans:  # one is given up for each that is new
                HEAP_TRIMMER.trim()
            return ExecutionPlan(self._program, shapes, symbols, self._memory)

        return self._plans.get_or_make((shapes, sizes), make)

    def _run_prepared(
        self,
        arrays: Sequence[AnyArray],
        symbols: Mapping[str, int],
        sizes: Sizes,
        limit: CallLimit | None,
        outputs: Outputs,
    ) -> Sequence[AnyArray]:
        environment = self._environment
        with no_fork_during:
            plan = self._plan(tuple([array.shape for array in arrays]), symbols, sizes)
        if outputs:
            from kernelyard.runtime.execute.given_outputs import check_shapes  # few callers give any

            check_shapes(self._program.outputs, outputs, plan.result_shapes)
        if plan.is_empty:
            return self._empty_results(plan, outputs)
        context = self._contexts.acquire(limit)
        try:
            with no_fork_during:
                bound = context.bind(plan, environment.executable, environment.threads)
            context.latest[self._key] = sizes, bound
            if limit is not None:
                limit.check()
            hook = environment.step_hook
            if hook is None:
                return bound.run(arrays, limit, outputs)
            return bound.run_stepwise(arrays, hook if limit is None else hook.within(limit))
        except NoImplementationError as error:
            if error.symbol not in environment.executable.fallbacks or outputs:  # outputs may lie where inputs did
                raise
            refused = error
        finally:
            if not context.is_temporary:
                self._contexts.release(context)
            if self._contexts.waiters:
                self._contexts.notify(context)
        self._fall_back(plan, sizes, refused)
        return self._run_prepared(arrays, symbols, sizes, limit, outputs)

    def _fall_back(self, plan: ExecutionPlan, sizes: Sizes, refused: NoImplementationError) -> None:
        """Have generated kernels run from now on instead of a function that a step of the plan found impossible."""
        from kernelyard.runtime.execute.fallback import fall_back  # few libraries refuse anything
        from kernelyard.runtime.execute.step_errors import RefusedError

        replaced = fall_back(plan, RefusedError({refused.symbol: refused}), self._environment.executable)
        key = plan.input_shapes, sizes
        self._plans.pop(key)
        for context in self._contexts:
            with no_fork_during:
                context.unbind(plan)
        self._plans.get_or_make(key, lambda: replaced)

    def _empty_results(self, plan: ExecutionPlan, outputs: Outputs) -> list[AnyArray]:
        specs, driver = self._program.outputs, self._environment.driver
        arrays = [np.empty(shape, to_numpy(spec.dtype)) for spec, shape in zip(specs, plan.result_shapes, strict=True)]
        if driver is not None:
            from kernelyard.runtime.device.array import DeviceArray

            return [DeviceArray.of(driver, array) for array in arrays]
        given = outputs or (None,) * len(arrays)
        return [array if place is None else place for array, place in zip(arrays, given, strict=True)]
