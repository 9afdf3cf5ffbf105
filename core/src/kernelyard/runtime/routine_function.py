"""RoutineFunction: a routine on a virtual machine. Its code is interpreted here; its blocks run as programs do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard.errors import ExecutionError
from kernelyard.runtime import routine as code
from kernelyard.runtime.entry_function import EntryFunction
from kernelyard.runtime.program_function import ProgramRunner
from kernelyard.runtime.routine import Closure, ClosureSpec, Instruction, Routine
from kernelyard.runtime.shapes import SymbolSolver, stacked
from kernelyard.runtime.spec import TensorSpec

if TYPE_CHECKING:
    from kernelyard.runtime.vm import VirtualMachine

MAX_DEPTH = 100
Arrays = Sequence[Any]
"""NumPy's, or a device's: `AnyArray`."""
Symbols = Mapping[str, int]


class RoutineFunction(EntryFunction):
    """Checks feeds as every entry function does, and carries out the routine's code."""

    def __init__(self, machine: VirtualMachine, routine: Routine) -> None:
        super().__init__(machine, routine)
        self._routine = routine
        self._blocks = [ProgramRunner(machine, block) for block in routine.blocks]
        self._solvers = {numbers: SymbolSolver(specs) for numbers, specs in _bound(routine).items()}
        resident = machine.executable.resident if machine.constants is None else machine.constants.array
        self._constants = {number: resident(digest) for number, digest in routine.constants.items()}

        self._stack: Callable[[Arrays], Any] = np.stack
        if machine.driver is not None:
            from kernelyard.runtime.device_array import stack

            self._stack = partial(stack, machine.driver)

    def _near(self, arrays: Arrays) -> Arrays:
        """Arrays where the machine computes: blocks read them there again and again."""
        driver = self._machine.driver
        if driver is None:
            return arrays
        from kernelyard.runtime.device_array import DeviceArray

        return [DeviceArray.of(driver, array) if isinstance(array, np.ndarray) else array for array in arrays]

    def _results(self, values: Sequence[Any]) -> Arrays:
        arrays = self._near(self.take(values))
        handed_on = {id(array) for array in (*arrays, *self._constants.values())}
        results: list[Any] = []
        for array in self._near(self.carry_out(arrays, {}, 0)):
            # Callers may write to a result: it is neither a feed, nor a constant, nor another result.
            results.append(array.copy() if id(array) in handed_on else array)
            handed_on.add(id(array))
        return results

    def carry_out(self, arrays: Arrays, symbols: Symbols, depth: int) -> Arrays:
        """The results for inputs and the sizes that the caller knows, of which the routine sees those that it shares.

        Raises: ExecutionError when functions call each other without end, and what blocks raise.
        """
        if depth > MAX_DEPTH:
            raise ExecutionError(
                "functions call each other too deeply", where=self._routine.name, expected=f"at most {MAX_DEPTH} calls"
            )
        frame = Frame(self._routine, arrays, self._constants, symbols, self._solvers, self._stack)
        instructions, position = self._routine.code, 0
        while True:
            instruction = instructions[position]
            position += 1
            if instruction.name == code.RETURN:
                return frame.read(instruction.inputs)
            if instruction.name == code.GOTO:
                position = instruction.target
            elif instruction.name == code.IF:
                (condition,) = frame.read(instruction.inputs)
                position = position if condition.item() else instruction.target
            elif instruction.name == code.BIND:
                frame.bind(instruction.inputs)
            elif instruction.name == code.COLLECT:
                frame.collect(instruction)
            elif instruction.name == code.STACK:
                frame.stack(instruction)
            else:
                frame.write(instruction, self._outputs(instruction, frame, depth))

    def _on_host(self, arrays: Arrays) -> Arrays:
        return [array if isinstance(array, np.ndarray) else array.numpy() for array in arrays]

    def _outputs(self, instruction: Instruction, frame: Frame, depth: int) -> Arrays:
        inputs = frame.read(instruction.inputs)
        if instruction.name == code.MOVE:
            return inputs
        if instruction.name == code.RUN:
            return self._blocks[instruction.target].run(inputs, frame.symbols)
        if instruction.name == code.EVALUATE:
            module = self._machine.executable.modules[instruction.target]
            return self._near(module.evaluate(instruction.symbol, self._on_host(inputs), frame.symbols))
        if instruction.name == code.CLOSE:
            return [Closure(instruction.symbol, tuple(inputs), dict(frame.symbols))]
        if instruction.name == code.INVOKE:
            closure, *args = inputs
            called = self._machine.routine(closure.function)
            return called.carry_out([*closure.captured, *args], closure.symbols, depth + 1)
        return self._machine.routine(instruction.symbol).carry_out(inputs, frame.symbols, depth + 1)


class Frame:
    """The values and sizes of one call of a routine."""

    def __init__(
        self,
        routine: Routine,
        inputs: Arrays,
        constants: Mapping[int, Any],
        symbols: Symbols,
        solvers: Mapping[tuple[int, ...], SymbolSolver],
        stack: Callable[[Arrays], Any] = np.stack,
    ) -> None:
        self._routine = routine
        self._solvers = solvers
        self._stack = stack
        self._values: list[Any] = [None] * len(routine.values)
        self._values[: len(inputs)] = inputs
        _check_kinds(routine.inputs, inputs, routine.name)
        for number, array in constants.items():
            self._values[number] = array
        self._collected: dict[int, list[Any]] = {}
        self.symbols = {name: symbols[name] for name in routine.symbols if name in symbols}
        self.bind(tuple(range(len(inputs))))

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Some values. Raises: ExecutionError for one that nothing has written."""
        found = [array for array in map(self._values.__getitem__, numbers) if array is not None]
        if len(found) != len(numbers):
            missing = next(number for number in numbers if self._values[number] is None)
            raise ExecutionError("a value is read before it is written", where=self._routine.name, found=f"v{missing}")
        return found

    def write(self, instruction: Instruction, arrays: Arrays) -> None:
        """The outputs of an instruction. Raises: ExecutionError when there are not as many."""
        if len(arrays) != len(instruction.outputs):
            raise ExecutionError(
                "an instruction has another number of results",
                where=f"{self._routine.name}, {instruction}",
                found=len(arrays),
            )
        _check_kinds([self._routine.values[n] for n in instruction.outputs], arrays, self._routine.name)
        for number, array in zip(instruction.outputs, arrays, strict=True):
            self._values[number] = array

    def collect(self, instruction: Instruction) -> None:
        """Keep the inputs for the outputs beside them."""
        for number, array in zip(instruction.outputs, self.read(instruction.inputs), strict=True):
            self._collected.setdefault(number, []).append(array)

    def stack(self, instruction: Instruction) -> None:
        """Write what was collected for the outputs. Raises: ShapeError when its shapes differ."""
        specs = self._routine.values
        arrays = [stacked(self._collected.pop(n, ()), specs[n], self.symbols, self._stack) for n in instruction.outputs]
        self.write(instruction, arrays)

    def bind(self, numbers: tuple[int, ...]) -> None:
        """Read new symbols off some values, and check the sizes that were known. Raises: InputShapeError."""
        self._solvers[numbers]([array.shape for array in self.read(numbers)], self.symbols)


def _bound(routine: Routine) -> dict[tuple[int, ...], list[TensorSpec]]:
    """The values whose sizes are read together: the inputs, and those of each such instruction."""
    groups = [instruction.inputs for instruction in routine.code if instruction.name == code.BIND]
    groups.append(tuple(range(len(routine.inputs))))
    return {numbers: [routine.values[number] for number in numbers] for numbers in groups}


def _check_kinds(specs: Sequence[TensorSpec], values: Arrays, where: str) -> None:
    """Tensors stand for tensors, and closures for closures. Raises: ExecutionError."""
    if len(specs) != len(values):
        raise ExecutionError(
            "a function is given another number of values", where=where, found=len(values), expected=len(specs)
        )
    for spec, value in zip(specs, values, strict=True):
        if isinstance(spec, ClosureSpec) != isinstance(value, Closure):
            found = "a closure" if isinstance(value, Closure) else "a tensor"
            raise ExecutionError("a value is of the wrong kind", where=where, found=found, expected=repr(spec))
