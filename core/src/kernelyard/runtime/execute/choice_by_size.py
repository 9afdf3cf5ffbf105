"""Choose among placements of one model by the sizes of its inputs: the one that was measured nearest to them runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernelyard.runtime.abi.solve_symbols import solve_symbols
from kernelyard.runtime.lru import LRU, CacheInfo, sum_infos
from kernelyard.runtime.program.execution_plan import NOTHING

if TYPE_CHECKING:
    from kernelyard.runtime.abi.spec import TensorSpec
    from kernelyard.runtime.device.array import AnyArray
    from kernelyard.runtime.execute.bound_program import Outputs
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.compiled_model import CompiledModel
    from kernelyard.runtime.execute.entry_function import FunctionRunner
    from kernelyard.runtime.program.execution_plan import Shapes


def choose_by_size(models: Sequence[CompiledModel], sizes: Mapping[str, int]) -> int:
    """Return the number of the model that is taken at sizes, of symbols: the nearest by the logarithms of sizes.

    So the border between 16 and 64 is 32, their geometric mean. Where two are as near, the first is taken.

    Example:
        >>> from types import SimpleNamespace
        >>> models = [SimpleNamespace(sizes=({"n": 64},)), SimpleNamespace(sizes=({"n": 1}, {"n": 16}))]
        >>> [choose_by_size(models, {"n": n}) for n in (1, 31, 32, 500)]
        [1, 1, 0, 0]
    """
    distances = [min((_distance(near, sizes) for near in model.sizes), default=math.inf) for model in models]
    return distances.index(min(distances))


def sizes_at(inputs: Sequence[TensorSpec], shapes: Shapes) -> dict[str, int]:
    """Return the sizes of the symbols in shapes of inputs. Raises: InputShapeError for shapes that do not fit."""
    values: dict[str, int] = {}
    solve_symbols(inputs, shapes, values, least=0, may_leave_unknown=True)
    return values


class SizedRunner:
    """Runs a function in the placement that is taken at the sizes of its inputs.

    models: the placements of the model. runners: of the function in each. It is chosen once for each set of shapes of
    `inputs` that is kept.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        models: Sequence[CompiledModel],
        runners: Sequence[FunctionRunner],
        max_plans: int,
    ) -> None:
        self._inputs = inputs
        self._models = models
        self._runners = runners
        self._chosen: LRU[Shapes, FunctionRunner] = LRU(max_plans)
        # That of the runner that ran last, so that calls of the same sizes cost no more than without a choice.
        self.try_fast_path = runners[0].try_fast_path

    def run(
        self,
        arrays: Sequence[AnyArray],
        symbols: Mapping[str, int] = NOTHING,
        limit: CallLimit | None = None,
        outputs: Outputs = (),
    ) -> Sequence[AnyArray]:
        """See `FunctionRunner.run`."""
        runner = self._runner_at(tuple([array.shape for array in arrays]))
        self.try_fast_path = runner.try_fast_path
        return runner.run(arrays, symbols, limit, outputs)

    def prepare(self, sets: Sequence[Shapes], callers: int = 1) -> None:
        """See `FunctionRunner.prepare`."""
        by_runner: dict[FunctionRunner, list[Shapes]] = {}
        for shapes in sets:
            by_runner.setdefault(self._runner_at(shapes), []).append(shapes)
        for runner, its_sets in by_runner.items():
            runner.prepare(its_sets, callers)

    def info(self) -> CacheInfo:
        """See `FunctionRunner.info`."""
        return sum_infos(runner.info() for runner in self._runners)

    def recent_shapes(self) -> list[Shapes]:
        """See `FunctionRunner.recent_shapes`."""
        return list(self._chosen)

    def _runner_at(self, shapes: Shapes) -> FunctionRunner:
        def choose() -> FunctionRunner:
            return self._runners[choose_by_size(self._models, sizes_at(self._inputs, shapes))]

        return self._chosen.get_or_make(shapes, choose)


def _distance(near: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Return the square of the distance between sizes, over the symbols that both have."""
    return sum(math.log(max(sizes[name], 1) / max(size, 1)) ** 2 for name, size in near.items() if name in sizes)
