"""ProgramFunction: a program that callers run; ProgramRunner: a program on arrays, as routines run their blocks too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelyard.runtime.entry_function import EntryFunction
from kernelyard.runtime.lru import LRU
from kernelyard.runtime.plan import NOTHING, Plan, Shapes
from kernelyard.runtime.program import Program

if TYPE_CHECKING:
    from kernelyard.runtime.device_array import AnyArray
    from kernelyard.runtime.vm import VirtualMachine

MAX_PLANS = 16
Sizes = tuple[int | None, ...]
"""Of a program's symbols, as a routine knows them; none where the shapes of the inputs say them all."""


class ProgramRunner:
    """Finds the plan for the shapes of some arrays, and a lane to run it in.

    A call of a small program takes about a microsecond. So the instance that ran last is tried first (`attempt`): it
    knows whether the values are NumPy arrays of its shapes and dtypes, as they usually are.
    """

    def __init__(self, machine: VirtualMachine, program: Program) -> None:
        self._machine = machine
        self._lanes = machine.lanes
        self._program = program
        self._plans: LRU[tuple[Shapes, Sizes], Plan] = LRU(MAX_PLANS)

    def attempt(self, values: Sequence[Any], sizes: Sizes = ()) -> Sequence[AnyArray] | None:
        """The results, where the values and the sizes fit the call before; else None."""
        machine, lanes = self._machine, self._lanes
        lane = lanes.take()
        try:
            latest = lane.latest.get(self)
            if latest is None or latest[0] != sizes or machine.around is not None:
                return None
            return latest[1].attempt(*values)
        finally:
            lanes.give_back(lane)

    def run(self, arrays: Sequence[AnyArray], symbols: Mapping[str, int] = NOTHING) -> Sequence[AnyArray]:
        """The results for arrays of the inputs' dtypes; `symbols` has sizes that do not follow from their shapes."""
        sizes = tuple(map(symbols.get, self._program.symbols)) if symbols else ()
        results = self.attempt(arrays, sizes)
        return self._prepared(arrays, symbols, sizes) if results is None else results

    def prepare(self, shapes: Shapes) -> None:
        """Do what the first call with such shapes does before it runs. Raises: ShapeError, ExecutionError."""
        lane = self._lanes.take()
        try:
            lane.instance(self._plan(shapes, NOTHING, ()), self._machine.executable, self._machine.threads)
        finally:
            self._lanes.give_back(lane)

    def _plan(self, shapes: Shapes, symbols: Mapping[str, int], sizes: Sizes) -> Plan:
        return self._plans.get_or_make((shapes, sizes), lambda: Plan(self._program, shapes, symbols))

    def _prepared(self, arrays: Sequence[AnyArray], symbols: Mapping[str, int], sizes: Sizes) -> Sequence[AnyArray]:
        machine = self._machine
        plan = self._plan(tuple([array.shape for array in arrays]), symbols, sizes)
        lane = self._lanes.take()
        try:
            instance = lane.instance(plan, machine.executable, machine.threads)
            lane.latest[self] = sizes, instance
            return instance.run(arrays) if machine.around is None else instance.run_stepwise(arrays, machine.around)
        finally:
            self._lanes.give_back(lane)


class ProgramFunction(EntryFunction):
    """A program that callers run."""

    def __init__(self, machine: VirtualMachine, program: Program) -> None:
        super().__init__(machine, program)
        self._runner = ProgramRunner(machine, program)

    def _results(self, values: Sequence[Any]) -> Sequence[AnyArray]:
        results = self._runner.attempt(values)
        return self._runner.run(self.take(values)) if results is None else results
