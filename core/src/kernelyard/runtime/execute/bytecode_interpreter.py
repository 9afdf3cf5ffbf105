"""BytecodeInterpreter: run a VM function, with its branches and loops (`if`, `while`); blocks run as programs do."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelyard.cached_property import cached_property
from kernelyard.errors import ExecutionError
from kernelyard.runtime.abi.solve_symbols import SymbolSolver, stack_items
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.execute.program_runner import ProgramRunner
from kernelyard.runtime.lru import CacheInfo, sum_infos
from kernelyard.runtime.program import vm_function as bytecode
from kernelyard.runtime.program.vm_function import Closure, ClosureSpec, Instruction, VMFunction

if TYPE_CHECKING:
    from kernelyard.runtime.execute.call_limit import CallLimit
    from kernelyard.runtime.execute.run_environment import RunEnvironment

MAX_DEPTH = 100
Arrays = Sequence[Any]
"""NumPy's, or a device's: `AnyArray`."""
Symbols = Mapping[str, int]


class Interpreters(dict[str, "BytecodeInterpreter"]):
    """Hold the interpreters of an executable's VM functions by name; they call each other while somebody holds this."""

    def __init__(self, environment: RunEnvironment) -> None:
        for name, vm_function in environment.executable.vm_functions.items():
            self[name] = BytecodeInterpreter(environment, vm_function, weakref.proxy(self))


class BytecodeInterpreter:
    """Carries out a VM function's bytecode.

    functions: those it may call by name, itself among them; in their hands, it must not have them in its own.
    """

    def __init__(
        self, environment: RunEnvironment, vm_function: VMFunction, functions: Mapping[str, BytecodeInterpreter]
    ) -> None:
        self._environment = environment
        self._functions = functions
        self.vm_function = vm_function
        self._blocks = [ProgramRunner(environment, block) for block in vm_function.blocks]
        self._inputs = tuple(range(len(vm_function.inputs)))
        self._solvers = {
            numbers: SymbolSolver(specs, may_leave_unknown=numbers != self._inputs)
            for numbers, specs in _group_sized_values(vm_function, self._inputs).items()
        }
        self._readers = [_reader(instruction.inputs) for instruction in vm_function.code]
        constants = {number: environment.resident(digest) for number, digest in vm_function.constants.items()}
        self._values = [constants.get(number) for number in range(len(vm_function.values))]
        self._constants = tuple(constants.values())
        self._stack: Callable[[Arrays], Any] = np.stack
        if environment.driver is not None:
            from kernelyard.runtime.device.array import stack

            self._stack = partial(stack, environment.driver)

    @property
    def constants(self) -> Arrays:
        """The arrays that blocks read and that calls may hand on."""
        return self._constants

    def info(self) -> CacheInfo:
        """Return the counts of the plans of all blocks."""
        return sum_infos(each.info() for each in self._blocks)

    def near(self, arrays: Arrays) -> Arrays:
        """Return the arrays where the machine computes: blocks read them there again and again."""
        driver = self._environment.driver
        if driver is None:
            return arrays
        from kernelyard.runtime.device.array import DeviceArray

        return [DeviceArray.of(driver, array) if isinstance(array, np.ndarray) else array for array in arrays]

    @cached_property
    def _is_leaf(self) -> bool:
        """Tell if the function is one block and the return: bodies and conditions of loops are, and run most often."""
        vm_function = self.vm_function
        if [instruction.name for instruction in vm_function.code] != [bytecode.RUN, bytecode.RETURN]:
            return False
        run, block = vm_function.code[0], vm_function.blocks[vm_function.code[0].target]
        return len(run.outputs) == len(block.outputs) and not vm_function.has_closures

    def _call(self, arrays: Arrays, symbols: Symbols, depth: int, limit: CallLimit | None) -> Arrays:
        """Do what another function's call asks for."""
        if self._is_leaf and limit is None and len(arrays) == len(self._inputs) and Closure not in map(type, arrays):
            return self._carry_out_leaf(arrays, symbols)
        return self.carry_out(arrays, symbols, depth, limit)

    def _carry_out_leaf(self, arrays: Arrays, symbols: Symbols) -> Arrays:
        """Do as `carry_out` does, without a frame."""
        vm_function, values = self.vm_function, list(self._values)
        values[: len(arrays)] = arrays
        known = {name: symbols[name] for name in vm_function.symbols if name in symbols}
        self._solvers[self._inputs]([array.shape for array in arrays], known)
        run = vm_function.code[0]
        results = self._blocks[run.target].run(self._readers[0](values), known)
        for number, result in zip(run.outputs, results, strict=True):
            values[number] = result
        return self._readers[1](values)

    def carry_out(self, arrays: Arrays, symbols: Symbols, depth: int, limit: CallLimit | None = None) -> Arrays:
        """Run on inputs and the sizes that the caller knows, of which the function sees those that it shares.

        limit: looked at before each instruction. Raises: ExecutionError when functions call each other without end, and
        what blocks raise.
        """
        if depth > MAX_DEPTH:
            raise ExecutionError(
                "the maximum call depth is exceeded",
                where=self.vm_function.name,
                expected=f"at most {MAX_DEPTH} calls",
            )
        frame = self._frame(arrays, symbols, limit)
        values, instructions, readers, position = frame.values, self.vm_function.code, self._readers, 0
        while True:
            instruction, inputs = instructions[position], readers[position](values)
            position += 1
            if limit is not None:
                limit.check()
            if instruction.name == bytecode.RUN:
                frame.write(instruction, self._blocks[instruction.target].run(inputs, frame.symbols, limit))
            elif instruction.name == bytecode.BIND:
                self._bind(instruction.inputs, inputs, frame)
            elif instruction.name == bytecode.RETURN:
                return inputs
            elif instruction.name == bytecode.GOTO:
                position = instruction.target
            elif instruction.name == bytecode.IF:
                position = position if inputs[0].item() else instruction.target
            elif instruction.name == bytecode.COLLECT:
                frame.collect(instruction, inputs)
            elif instruction.name == bytecode.STACK:
                frame.write(instruction, self._stack_outputs(instruction, frame))
            else:
                frame.write(instruction, self._outputs(instruction, inputs, frame, depth))

    def _frame(self, arrays: Arrays, symbols: Symbols, limit: CallLimit | None) -> Frame:
        values = list(self._values)
        values[: len(arrays)] = arrays
        vm_function = self.vm_function
        shared = {name: symbols[name] for name in vm_function.symbols if name in symbols}
        frame = Frame(vm_function, values, shared, limit)
        _check_kinds(vm_function.inputs, arrays, vm_function.name)
        self._bind(self._inputs, arrays, frame)
        return frame

    def _bind(self, numbers: tuple[int, ...], arrays: Arrays, frame: Frame) -> None:
        """Read new symbols off some values, and check the sizes that were known. Raises: InputShapeError."""
        self._solvers[numbers]([array.shape for array in arrays], frame.symbols)

    def _stack_outputs(self, instruction: Instruction, frame: Frame) -> Arrays:
        """Stack the values collected for each output. Raises: ShapeError when their shapes differ."""
        specs = self.vm_function.values
        return [stack_items(frame.pop_collected(n), specs[n], frame.symbols, self._stack) for n in instruction.outputs]

    def _copy_to_host(self, arrays: Arrays) -> Arrays:
        return [array if isinstance(array, np.ndarray) else array.numpy() for array in arrays]

    def _outputs(self, instruction: Instruction, inputs: Arrays, frame: Frame, depth: int) -> Arrays:
        if instruction.name == bytecode.MOVE:
            return inputs
        if instruction.name == bytecode.EVALUATE:
            module = self._environment.executable.modules[instruction.target]
            return self.near(module.evaluate(instruction.symbol, self._copy_to_host(inputs), frame.symbols))
        if instruction.name == bytecode.CLOSE:
            return [Closure(instruction.symbol, tuple(inputs), dict(frame.symbols))]
        if instruction.name == bytecode.INVOKE:
            closure, *args = inputs
            called = self._functions[closure.function]
            return called.carry_out([*closure.captured, *args], closure.symbols, depth + 1, frame.limit)
        return self._functions[instruction.symbol]._call(inputs, frame.symbols, depth + 1, frame.limit)


class Frame:
    """The values and sizes of one call of a VM function, and what ends it early."""

    def __init__(
        self, vm_function: VMFunction, values: list[Any], symbols: dict[str, int], limit: CallLimit | None
    ) -> None:
        self.values = values
        self.symbols = symbols
        self.limit = limit
        self.vm_function = vm_function
        self._collected: dict[int, list[Any]] = {}

    def write(self, instruction: Instruction, arrays: Arrays) -> None:
        """Write the outputs of an instruction. Raises: ExecutionError when there are not as many."""
        outputs, vm_function = instruction.outputs, self.vm_function
        if len(arrays) != len(outputs):
            raise ExecutionError(
                "an instruction returns the wrong number of results",
                where=f"{vm_function.name}, {instruction}",
                found=len(arrays),
            )
        if vm_function.has_closures:
            _check_kinds([vm_function.values[number] for number in outputs], arrays, vm_function.name)
        for number, array in zip(outputs, arrays, strict=True):
            self.values[number] = array

    def collect(self, instruction: Instruction, arrays: Arrays) -> None:
        """Keep arrays for the outputs beside them."""
        for number, array in zip(instruction.outputs, arrays, strict=True):
            self._collected.setdefault(number, []).append(array)

    def pop_collected(self, number: int) -> Arrays:
        """Pop the arrays that were collected for a value."""
        return self._collected.pop(number, ())


def _reader(numbers: tuple[int, ...]) -> Callable[[Sequence[Any]], Arrays]:
    """Return a function that picks some values.

    `itemgetter` alone would give a single one without a tuple around it.
    """
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return itemgetter(slice(numbers[0], numbers[0] + 1)) if numbers else itemgetter(slice(0))


def _group_sized_values(vm_function: VMFunction, inputs: tuple[int, ...]) -> dict[tuple[int, ...], list[TensorSpec]]:
    """Return the values whose sizes are read together: the inputs, and those of each such instruction."""
    groups = [inputs, *(instruction.inputs for instruction in vm_function.code if instruction.name == bytecode.BIND)]
    return {numbers: [vm_function.values[number] for number in numbers] for numbers in groups}


def _check_kinds(specs: Sequence[TensorSpec], values: Arrays, where: str) -> None:
    """Check that tensors stand for tensors, and closures for closures. Raises: ExecutionError."""
    if len(specs) != len(values):
        raise ExecutionError(
            "a function is called with the wrong number of values", where=where, found=len(values), expected=len(specs)
        )
    for spec, value in zip(specs, values, strict=True):
        if isinstance(spec, ClosureSpec) != isinstance(value, Closure):
            found = "a closure" if isinstance(value, Closure) else "a tensor"
            raise ExecutionError("a value is of the wrong kind", where=where, found=found, expected=repr(spec))
