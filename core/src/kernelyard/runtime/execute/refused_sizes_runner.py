"""RefusedSizesRunner: run a function on sizes that its code was not compiled for: those of 0, and very small ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelyard.errors import InputShapeError, KernelyardError, ShapeError
from kernelyard.runtime.abi.module import DEFAULT_MAX_PLANS
from kernelyard.runtime.lru import LRU
from kernelyard.runtime.program.execution_plan import NOTHING

if TYPE_CHECKING:
    from kernelyard.runtime.device.array import AnyArray
    from kernelyard.runtime.execute.bound_program import Outputs
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.entry_function import FunctionRunner
    from kernelyard.runtime.lru import CacheInfo
    from kernelyard.runtime.program.execution_plan import FixedSizes, Shapes


class RefusedSizesRunner:
    """Runs a function; where it refuses sizes, the model is compiled for those of 0, or else for all, and that runs.

    Code is compiled for sizes of 1 and more, and of images as large as the windows that move over them. runner: runs
    it. make: returns the runner of what is compiled for sizes.
    """

    def __init__(self, runner: FunctionRunner, make: Callable[[FixedSizes], FunctionRunner]) -> None:
        self._runner = runner
        self._make = make
        self._made: LRU[FixedSizes, FunctionRunner] = LRU(DEFAULT_MAX_PLANS)

    def try_fast_path(self, values: Sequence[Any]) -> Sequence[AnyArray] | None:
        """See `FunctionRunner.try_fast_path`."""
        return self._runner.try_fast_path(values)

    def run(
        self,
        arrays: Sequence[AnyArray],
        symbols: Mapping[str, int] = NOTHING,
        limit: CallLimit | None = None,
        outputs: Outputs = (),
    ) -> Sequence[AnyArray]:
        """See `FunctionRunner.run`."""
        try:
            return self._runner.run(arrays, symbols, limit, outputs)
        except (InputShapeError, ShapeError) as error:
            shapes = tuple(tuple(array.shape) for array in arrays)
            sizes = _zeros(shapes)
            if not any(map(any_zero, sizes)):
                if isinstance(error, InputShapeError):
                    raise
                sizes = shapes
            runner = self._runner_for(sizes, error)
        return runner.run(arrays, symbols, limit, outputs)

    def prepare(self, sets: Sequence[Shapes], callers: int = 1) -> None:
        """See `FunctionRunner.prepare`."""
        self._runner.prepare(sets, callers)

    def info(self) -> CacheInfo:
        """See `FunctionRunner.info`."""
        return self._runner.info()

    def recent_shapes(self) -> list[Shapes]:
        """See `FunctionRunner.recent_shapes`."""
        return self._runner.recent_shapes()

    def _runner_for(self, sizes: FixedSizes, refusal: KernelyardError) -> FunctionRunner:
        try:
            return self._made.get_or_make(sizes, lambda: self._make(sizes))
        except KernelyardError as error:
            raise refusal from error


def any_zero(shape: Sequence[int | None]) -> bool:
    """Return whether a shape has a size of 0."""
    return 0 in shape


def _zeros(shapes: Sequence[tuple[int, ...]]) -> FixedSizes:
    return tuple(tuple(0 if size == 0 else None for size in shape) for shape in shapes)
