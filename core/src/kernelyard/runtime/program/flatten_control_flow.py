"""Flatten the control flow of a VM function: one program of its blocks and those of the functions that it calls.

Jumps lead over what is not run, and back to where an iteration of a loop begins. What a loop carries from one iteration
to the next lies in a buffer of its own, which the next values are copied to when an iteration ends; what it collects
is put into the result item by item.

So a model with branches and loops is one native call, as one without is. Closures, sizes that only values tell, and
carried values whose sizes change keep a VM function from it; it is then carried out instruction by instruction
(`bytecode_interpreter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kernelyard.dims import symbols_of
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program import vm_function as bytecode
from kernelyard.runtime.program.program import (
    CHECK_FULL,
    CLEAR,
    COLLECT,
    COPY,
    Jump,
    Program,
    Register,
    SizeCheck,
    Step,
    Transfer,
    root_of,
)
from kernelyard.runtime.program.vm_function import Instruction, VMFunction

# A VM function that is called often is there as often.
MOST_STEPS = 16384


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
        tuple(inliner.transfers),
    )


class _NoProgramError(Exception):
    """The VM function does something that programs do not."""


class _Frame(NamedTuple):
    """The registers of a function's values.

    merged: values that one branch or the other writes. carried: the loop-carried values, which each iteration writes.
    unchanged: those that a loop hands on as they are.
    """

    values: dict[int, int]
    merged: frozenset[int]
    carried: frozenset[int]
    unchanged: frozenset[int]


class _Inliner:
    """Appends blocks to one list of registers and one of steps, with jumps and transfers between these."""

    def __init__(self, vm_functions: Mapping[str, VMFunction], symbols: frozenset[str]) -> None:
        self.registers: list[Register] = []
        self.steps: list[Step] = []
        self.jumps: list[Jump] = []
        self.transfers: list[Transfer] = []
        self.checks: list[SizeCheck] = []
        self._vm_functions = vm_functions
        self._symbols = symbols

    @property
    def _place(self) -> int:
        return len(self.steps) + len(self.jumps) + len(self.transfers)

    def add(self, register: Register) -> int:
        """Return the number of a new register."""
        self.registers.append(register)
        return len(self.registers) - 1

    def inline(self, vm_function: VMFunction, inputs: Sequence[int], callers: tuple[str, ...]) -> list[int]:
        """Return the registers of a VM function's results, after its code on some registers. callers: who called it."""
        is_known = set(vm_function.symbols) <= self._symbols
        if vm_function.name in callers or not is_known or not _returns_last(vm_function.code):
            raise _NoProgramError
        self._check_types(vm_function.inputs, inputs)
        frame = self._frame(vm_function, inputs)
        places: list[int] = []
        pending: list[tuple[int, Instruction, int]] = []  # jumps, with what decides
        for instruction in vm_function.code:
            places.append(self._place)
            read = [frame.values[number] for number in instruction.inputs]
            if instruction.name in (bytecode.IF, bytecode.GOTO):
                pending.append((len(self.jumps), instruction, read[0] if read else -1))
                self.jumps.append(Jump(self._place, -1))
            elif instruction.name != bytecode.RETURN:
                self._carry_out(vm_function, instruction, read, frame, callers)
        for number, instruction, condition in pending:
            self.jumps[number] = Jump(self.jumps[number].place, places[instruction.target], condition)
        results = [frame.values[number] for number in vm_function.code[-1].inputs]
        self._check_types(vm_function.outputs, results)
        return results

    def _frame(self, vm_function: VMFunction, inputs: Sequence[int]) -> _Frame:
        """Return the registers of inputs and constants, and of the values that several instructions write."""
        code = vm_function.code
        values = dict(enumerate(inputs))
        for number, digest in vm_function.constants.items():
            values[number] = self._add_buffer(vm_function.values[number], "constant", digest)
        writers = Counter(number for each in code for number in each.outputs)
        shared = {number for number, times in writers.items() if times > 1}
        collected, begun = (_outputs(code, name) for name in (bytecode.STACK, bytecode.MOVE))
        unchanged = begun & {number for each in code for number in self._find_unchanged(each)}
        for number in sorted((shared | collected) - unchanged):
            values[number] = self._add_buffer(vm_function.values[number])
        for number in sorted(collected):
            self._transfer(CLEAR, values[number])
        return _Frame(values, frozenset(shared - begun), frozenset((shared & begun) - unchanged), frozenset(unchanged))

    def _find_unchanged(self, instruction: Instruction) -> set[int]:
        """Return the outputs of a call that are its inputs of the same places."""
        callee = self._vm_functions.get(instruction.symbol) if instruction.name == bytecode.CALL else None
        if callee is None:
            return set()
        triples = zip(instruction.inputs, instruction.outputs, callee.code[-1].inputs, strict=False)
        return {after for place, (before, after, given) in enumerate(triples) if before == after and given == place}

    def _add_buffer(self, spec: TensorSpec, kind: str = "buffer", digest: str = "") -> int:
        if not {name for dim in spec.shape for name in symbols_of(dim)} <= self._symbols:
            raise _NoProgramError
        return self.add(Register(spec.shape, spec.dtype, kind, digest=digest))

    def _transfer(self, kind: str, target: int, source: int = -1) -> None:
        self.transfers.append(Transfer(self._place, kind, target, source))

    def _check_types(self, specs: Sequence[TensorSpec], registers: Sequence[int]) -> None:
        """Check that registers are known to be of these types before anything is run. Raises: _NoProgramError."""
        for spec, number in zip(specs, registers, strict=True):
            register = self.registers[number]
            if (spec.shape, spec.dtype) != (register.shape, register.dtype):
                raise _NoProgramError

    def _carry_out(
        self,
        vm_function: VMFunction,
        instruction: Instruction,
        read: list[int],
        frame: _Frame,
        callers: tuple[str, ...],
    ) -> None:
        """Append an instruction that neither jumps nor returns."""
        first = len(self.registers)
        written = [frame.values.get(number, -1) for number in instruction.outputs]
        if instruction.name == bytecode.BIND:
            self._check_types([vm_function.values[n] for n in instruction.inputs], read)
        elif instruction.name == bytecode.COLLECT:
            for source, target in zip(read, written, strict=True):
                self._collect(target, source)
        elif instruction.name == bytecode.STACK:
            for target in written:
                self._transfer(CHECK_FULL, target)
        elif instruction.name == bytecode.MOVE:
            self._write(instruction, read, first, frame)
        elif instruction.name == bytecode.RUN:
            self._write(instruction, self._run(vm_function.blocks[instruction.target], read), first, frame)
        elif instruction.name == bytecode.CALL:
            results = self.inline(self._vm_functions[instruction.symbol], read, (*callers, vm_function.name))
            self._write(instruction, results, first, frame)
        else:
            raise _NoProgramError

    def _collect(self, target: int, source: int) -> None:
        if target < 0 or not self.registers[target].shape:
            raise _NoProgramError  # nothing stacks it
        register = self.registers[target]
        self._check_types([TensorSpec(register.shape[1:], register.dtype)], [source])
        self._transfer(COLLECT, target, source)

    def _write(self, instruction: Instruction, results: Sequence[int], first: int, frame: _Frame) -> None:
        """Say where the outputs of an instruction are; first: the first register of the instruction's own."""
        values = frame.values
        carried = {value: values[value] for value in instruction.outputs if value in frame.carried}
        saved: dict[int, int] = {}
        copied: list[tuple[int, int]] = []
        for value, result in zip(instruction.outputs, results, strict=True):
            if value in frame.merged:
                self._merge(values[value], result, first)
            elif value in carried:
                self._check_same(carried[value], result)
                if root_of(self.registers, result) != carried[value]:
                    copied.append((carried[value], self._save_register(result, carried.values(), saved)))
            elif value not in frame.unchanged or value not in values:
                values[value] = self._save_register(result, carried.values(), saved)
        for target, source in copied:
            self._transfer(COPY, target, source)

    def _save_register(self, register: int, overwritten: Collection[int], saved: dict[int, int]) -> int:
        """Return the register, or a copy of it where it is to be overwritten; saved: the copies that there are."""
        if root_of(self.registers, register) not in overwritten:
            return register
        if register not in saved:
            saved[register] = self._add_buffer(self.registers[register].spec)
            self._transfer(COPY, saved[register], register)
        return saved[register]

    def _check_same(self, register: int, other: int) -> None:
        self._check_types([self.registers[register].spec], [other])

    def _merge(self, target: int, result: int, first: int) -> None:
        """Let the steps write a result to the one buffer of the branches, in the place of their own; what a branch was
        given, and hands on, is copied there."""
        self._check_same(target, result)
        root = root_of(self.registers, result)
        if root < first or self.registers[root].kind != "buffer":
            self._transfer(COPY, target, result)
        else:
            self.registers[root] = replace(self.registers[root], kind="alias", source=target)

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


def _outputs(code: Sequence[Instruction], name: str) -> set[int]:
    """Return all outputs of instructions of a name."""
    return {number for each in code if each.name == name for number in each.outputs}


def _returns_last(code: Sequence[Instruction]) -> bool:
    """Return True for code that returns at its end alone."""
    return not any(each.name == bytecode.RETURN for each in code[:-1])
