"""VMFunctionRunner: run a VM function for a caller, by the interpreter of its bytecode or as one program.

Most VM functions are one program, too (`flatten_control_flow`), which takes their place from the second call with the
same shapes on: to prepare it is to prepare all branches, also those that are never taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernelyard.cached_property import cached_property
from kernelyard.errors import KernelyardError
from kernelyard.runtime.execute.program_runner import ProgramRunner
from kernelyard.runtime.lru import LRU, CacheInfo, sum_infos
from kernelyard.runtime.program.execution_plan import NOTHING, Shapes
from kernelyard.runtime.program.flatten_control_flow import flatten_control_flow

if TYPE_CHECKING:
    from kernelyard.runtime.execute.bound_program import Outputs
    from kernelyard.runtime.execute.bytecode_interpreter import Arrays, Interpreters
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.run_environment import RunEnvironment

Symbols = Mapping[str, int]


class VMFunctionRunner:
    """Runs an entry function that is a VM function; holds the interpreters of those that it calls."""

    def __init__(self, environment: RunEnvironment, name: str, interpreters: Interpreters) -> None:
        self._environment = environment
        self._interpreters = interpreters  # held here: they refer to each other weakly
        self._interpreter = interpreters[name]
        self._seen: LRU[Shapes, None] = LRU(environment.executable.max_plans)
        self._ran_fast = False  # calls that `_seen` has not been told of
        self._fitting: LRU[Shapes, bool] = LRU(environment.executable.max_plans)

    @cached_property
    def _whole(self) -> ProgramRunner | None:
        """The runner of the VM function as one flattened program; None where it cannot be flattened."""
        if self._environment.driver is not None:
            return None
        program = flatten_control_flow(self._interpreter.vm_function, self._environment.executable.vm_functions)
        return ProgramRunner(self._environment, program) if program else None

    def _fits_whole(self, whole: ProgramRunner, arrays: Arrays) -> bool:
        """Tell if the flattened program is prepared for shapes, which it is when they come a second time."""
        shapes: Shapes = tuple([array.shape for array in arrays])
        if self._environment.step_hook is not None:
            return False
        if self._is_new(shapes, whole):
            whole.retain(self._seen)  # else plans that are seldom needed would pile up beside the interpreter's
            return False

        def prepare() -> bool:
            with suppress(KernelyardError):  # some branch cannot work on these sizes, or not without Python
                whole.prepare([shapes])
                return True
            return False

        return self._fitting.get_or_make(shapes, prepare)

    def _is_new(self, shapes: Shapes, whole: ProgramRunner) -> bool:
        """Tell if shapes are none of the last `max_plans`, and note that they are the latest."""
        is_new = shapes not in self._seen
        before = whole.recent_shapes()[-1:] if self._ran_fast else ()
        self._ran_fast = False
        for each in (*before, shapes):
            self._seen.get_or_make(each, lambda: None)
        return is_new

    def prepare(self, sets: Sequence[Shapes], callers: int = 1) -> None:
        """Prepare like `ProgramRunner.prepare` if the function is flattened; others are prepared as they run."""
        whole = self._whole
        if whole is None:
            return
        whole.prepare(sets, callers)
        for shapes in sets:
            self._seen.get_or_make(shapes, lambda: None)
            self._fitting.get_or_make(shapes, lambda: True)

    def info(self) -> CacheInfo:
        """Return the counts of the plans of all blocks, and of the flattened program."""
        whole = self.__dict__.get("_whole")  # which looking at it would make
        return sum_infos(each.info() for each in (self._interpreter, *([whole] if whole else ())))

    def recent_shapes(self) -> list[Shapes]:
        """See `FunctionRunner.recent_shapes`."""
        return list(self._seen)

    def try_fast_path(self, values: Sequence[Any]) -> Arrays | None:
        """Run the function as one program, where that ran before on such values; None, with nothing done, else."""
        results = self._whole.try_fast_path(values) if self._whole else None
        if results is not None:
            self._ran_fast = True
        return results

    def run(
        self, arrays: Arrays, symbols: Symbols = NOTHING, limit: CallLimit | None = None, outputs: Outputs = ()
    ) -> Arrays:
        """Return the results, which are the caller's own, for arrays of the inputs' dtypes; see `ProgramRunner.run`."""
        whole = self._whole
        arrays = self._interpreter.near(arrays)
        if whole and self._fits_whole(whole, arrays):
            return whole.run(arrays, symbols, limit, outputs)
        handed_on = {id(array) for array in (*arrays, *self._interpreter.constants)}
        own: list[Any] = []
        for array in self._interpreter.near(self._interpreter.carry_out(arrays, symbols, 0, limit)):
            # Callers may write to a result: it is neither a feed, nor a constant, nor another result.
            own.append(array.copy() if id(array) in handed_on else array)
            handed_on.add(id(array))
        return own
