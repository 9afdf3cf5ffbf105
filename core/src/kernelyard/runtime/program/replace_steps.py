"""Replace steps of a program by the programs of their fallbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kernelyard.runtime.abi.spec import corrupted
from kernelyard.runtime.program.program import Program, Register, Step


def replace_steps(program: Program, fallbacks: Mapping[str, Program]) -> Program:
    """Return a program (without jumps) in which fallbacks, by symbol, replace the steps that call them.

    Raises: ArtifactCorruptedError if they do not fit together.
    """
    registers = list(program.registers)
    steps: list[Step] = []
    for step in program.steps:
        fallback = fallbacks.get(step.symbol)
        steps += [step] if fallback is None else _steps_of(fallback, step, registers)
    return replace(program, registers=tuple(registers), steps=tuple(steps))


def _steps_of(fallback: Program, step: Step, registers: list[Register]) -> Iterator[Step]:
    """Yield the steps of a fallback over the registers of a step; append its other registers."""
    written = {fallback.root(r): output for r, output in zip(fallback.results, step.outputs, strict=True)}
    numbers: list[int] = []
    for number, register in enumerate(fallback.registers):
        if register.kind == "input":
            numbers.append(step.inputs[register.index])
            continue
        if number in written:  # it may have another shape than the result, which then is a view of it
            register = replace(register, kind="alias", source=written[number])
        elif register.kind == "alias":
            register = replace(register, source=numbers[register.source])
        numbers.append(len(registers))
        registers.append(register)
    for inner in fallback.steps:
        inputs, outputs = (tuple(numbers[n] for n in side) for side in (inner.inputs, inner.outputs))
        yield replace(inner, inputs=inputs, outputs=outputs)


def check_fallbacks(programs: Iterable[Program], fallbacks: Mapping[str, Program]) -> None:
    """Check that fallbacks have the inputs and outputs of the steps that they replace.

    Raises: ArtifactCorruptedError.
    """
    for fallback in fallbacks.values():
        roots = [fallback.root(result) for result in fallback.results]
        if len(set(roots)) < len(roots) or any(fallback.registers[root].kind != "buffer" for root in roots):
            raise corrupted(f"fallback {fallback.name!r}, results", fallback.results, "buffers of its own")
        if any(step.symbol in fallbacks for step in fallback.steps):
            raise corrupted(f"fallback {fallback.name!r}", "a step with a fallback", "steps that always run")
    for program in programs:
        for step in program.steps:
            if step.symbol in fallbacks:
                _check_fits(program, step, fallbacks[step.symbol])


def _check_fits(program: Program, step: Step, fallback: Program) -> None:
    given, taken = (
        [(program.registers[r].shape, program.registers[r].dtype) for r in side] for side in (step.inputs, step.outputs)
    )
    own = [[(spec.shape, spec.dtype) for spec in side] for side in (fallback.inputs, fallback.outputs)]
    if own != [given, taken] or not set(fallback.symbols) <= set(program.symbols):
        where = f"program {program.name!r}, fallback of {step.symbol!r}"
        raise corrupted(where, own, f"{[given, taken]} over {program.symbols}")
