"""Flatten the control flow of a VM function: one program of its blocks and those of the functions that it calls.

Jumps lead over what is not run.

So a model with branches is one native call, as one without is. Loops, closures and sizes that only values tell keep a
VM function from it; it is then carried out instruction by instruction (`bytecode_interpreter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelyard.dims import symbols_of
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program import vm_function as bytecode
from kernelyard.runtime.program.program import Jump, Program, Register, SizeCheck, Step
from kernelyard.runtime.program.vm_function import Instruction, VMFunction

# A VM function that is called often is there as often.
MOST_STEPS = 2048


def flatten_control_flow(vm_function: VMFunction, vm_functions: Mapping[str, VMFunction]) -> Program | None:
    """Return a program that gives the same results as the function, or None; vm_functions: those that it may call."""
    inliner = _Inliner(vm_functions, frozenset(vm_function.symbols))
    inputs = [inliner.add(Register(s.shape, s.dtype, "input", index=n)) for n, s in enumerate(vm_function.inputs)]
    try:
        results = inliner.inline(vm_function, inputs, ())
    except _NoProgramError:
        return None
    return Program(
        vm_function.name,
        vm_function.symbols,
        vm_function.inputs,
        vm_function.outputs,
        tuple(inliner.registers),
        tuple(inliner.steps),
        tuple(results),
        tuple(inliner.checks),
        tuple(sorted(inliner.jumps)),
    )


class _NoProgramError(Exception):
    """The VM function does something that programs do not."""


class _Inliner:
    """Appends blocks to one list of registers and one of steps."""

    def __init__(self, vm_functions: Mapping[str, VMFunction], symbols: frozenset[str]) -> None:
        self.registers: list[Register] = []
        self.steps: list[Step] = []
        self.jumps: list[Jump] = []
        self.checks: list[SizeCheck] = []
        self._vm_functions = vm_functions
        self._symbols = symbols

    @property
    def _place(self) -> int:
        return len(self.steps) + len(self.jumps)

    def add(self, register: Register) -> int:
        """Return the number of a new register."""
        self.registers.append(register)
        return len(self.registers) - 1

    def inline(self, vm_function: VMFunction, inputs: Sequence[int], callers: tuple[str, ...]) -> list[int]:
        """Return the registers of a VM function's results, after its code on some registers. callers: who called it."""
        is_known = set(vm_function.symbols) <= self._symbols
        if vm_function.name in callers or not is_known or not _goes_forward(vm_function.code):
            raise _NoProgramError
        self._check_types(vm_function.inputs, inputs)
        values = dict(enumerate(inputs))
        for number, digest in vm_function.constants.items():
            values[number] = self._add_buffer(vm_function.values[number], "constant", digest)
        shared = self._add_shared(vm_function)
        values |= shared
        places: list[int] = []
        pending: list[tuple[int, Instruction, int]] = []  # jumps, with what decides
        for instruction in vm_function.code:
            places.append(self._place)
            read = [values[number] for number in instruction.inputs]
            if instruction.name in (bytecode.IF, bytecode.GOTO):
                pending.append((len(self.jumps), instruction, read[0] if read else -1))
                self.jumps.append(Jump(self._place, -1))
            elif instruction.name == bytecode.BIND:
                self._check_types([vm_function.values[n] for n in instruction.inputs], read)
            elif instruction.name != bytecode.RETURN:
                first = len(self.registers)
                results = self._results(vm_function, instruction, read, callers)
                self._write(instruction, results, first, values, shared)
        for number, instruction, condition in pending:
            self.jumps[number] = Jump(self.jumps[number].place, places[instruction.target], condition)
        results = [values[number] for number in vm_function.code[-1].inputs]
        self._check_types(vm_function.outputs, results)
        return results

    def _add_shared(self, vm_function: VMFunction) -> dict[int, int]:
        """Add a register for each value that several instructions write."""
        writers = Counter(number for instruction in vm_function.code for number in instruction.outputs)
        return {n: self._add_buffer(vm_function.values[n]) for n, times in writers.items() if times > 1}

    def _add_buffer(self, spec: TensorSpec, kind: str = "buffer", digest: str = "") -> int:
        return self.add(Register(spec.shape, spec.dtype, kind, digest=digest))

    def _check_types(self, specs: Sequence[TensorSpec], registers: Sequence[int]) -> None:
        """The registers are known to be of these types before anything is run."""
        for spec, number in zip(specs, registers, strict=True):
            register = self.registers[number]
            if (spec.shape, spec.dtype) != (register.shape, register.dtype):
                raise _NoProgramError

    def _results(
        self, vm_function: VMFunction, instruction: Instruction, read: list[int], callers: tuple[str, ...]
    ) -> list[int]:
        if instruction.name == bytecode.MOVE:
            return read
        if instruction.name == bytecode.RUN:
            return self._run(vm_function.blocks[instruction.target], read)
        if instruction.name == bytecode.CALL:
            return self.inline(self._vm_functions[instruction.symbol], read, (*callers, vm_function.name))
        raise _NoProgramError

    def _write(
        self,
        instruction: Instruction,
        results: Sequence[int],
        first: int,
        values: dict[int, int],
        shared: Mapping[int, int],
    ) -> None:
        """Each value is what was computed for it. One that several instructions write is one buffer, which is written
        in the place of their own; first: the first register of the instruction's own."""
        for value, result in zip(instruction.outputs, results, strict=True):
            if value not in shared:
                values[value] = result
                continue
            self._check_types([self.registers[shared[value]].spec], [result])
            root = self._root(result)
            if root < first or self.registers[root].kind != "buffer":
                raise _NoProgramError  # it would have to be copied
            self.registers[root] = replace(self.registers[root], kind="alias", source=shared[value])

    def _root(self, number: int) -> int:
        while self.registers[number].kind == "alias":
            number = self.registers[number].source
        return number

    def _run(self, block: Program, inputs: Sequence[int]) -> list[int]:
        """Return the registers of a block's results, after its steps."""
        self._check_types(block.inputs, inputs)
        named = {name for register in block.registers for dim in register.shape for name in symbols_of(dim)}
        if not named | set(block.symbols) <= self._symbols or len(self.steps) + len(block.steps) > MOST_STEPS:
            raise _NoProgramError
        numbers: list[int] = []
        for register in block.registers:
            if register.kind == "input":
                numbers.append(inputs[register.index])
            elif register.kind == "alias":
                numbers.append(self.add(replace(register, source=numbers[register.source])))
            else:
                numbers.append(self.add(register))
        for step in block.steps:
            read, written = (tuple(numbers[number] for number in side) for side in (step.inputs, step.outputs))
            self.steps.append(replace(step, inputs=read, outputs=written))
        self.checks += block.checks
        return [numbers[number] for number in block.results]


def _goes_forward(code: Sequence[Instruction]) -> bool:
    """Return True for code without loops that returns at its end alone."""
    jumps = (bytecode.IF, bytecode.GOTO)
    return not any(
        each.name == bytecode.RETURN or (each.name in jumps and each.target <= number)
        for number, each in enumerate(code[:-1])
    )
