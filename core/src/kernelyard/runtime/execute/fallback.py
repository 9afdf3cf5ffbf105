"""Fallbacks: programs of generated kernels that stand in for functions of a library.

A library may have no implementation of a region for the sizes or the device at hand (NoImplementationError). The
region's fallback then takes the place of the steps that call it, before anything is run: memory planning, capture and
profiles see its steps as they see all others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelyard.errors import NoImplementationError, PerformanceWarning
from kernelyard.runtime.abi.spec import corrupted
from kernelyard.runtime.execute.step_errors import label_of
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Program, Register, Step

if TYPE_CHECKING:
    from kernelyard.runtime.execute.executable import Executable


class RefusedError(Exception):
    """Functions that their libraries refused for the sizes of a plan, by symbol; each of them has a fallback."""

    def __init__(self, reasons: Mapping[str, NoImplementationError]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


def fall_back(plan: ExecutionPlan, refused: RefusedError, executable: Executable) -> ExecutionPlan:
    """Return the plan with fallbacks in the place of refused functions.

    Warns: PerformanceWarning, once for each function of an executable.
    """
    chosen = {symbol: executable.fallbacks[symbol] for symbol in refused.reasons}
    with executable.lock:
        new = chosen.keys() - executable.warned_of
        executable.warned_of.update(new)
    for step in plan.program.steps:
        if step.symbol in new:
            new.discard(step.symbol)
            message = _message(plan, step, refused.reasons[step.symbol], executable)
            warnings.warn(message, PerformanceWarning, stacklevel=2)
    return ExecutionPlan(replace_steps(plan.program, chosen), plan.input_shapes, plan.values)


def _message(plan: ExecutionPlan, step: Step, error: NoImplementationError, executable: Executable) -> str:
    label = label_of(step, executable.modules)
    of_node = f" ({label.step})" if label.step != step.symbol else ""
    sizes = ", ".join(f"{name} = {value}" for name, value in sorted(plan.values.items()))
    kernels = ", ".join(each.symbol for each in executable.fallbacks[step.symbol].steps)
    reason = f"{error.message}{f', {sizes}' if sizes else ''}"
    return f"{label.kind} does not run {step.symbol}{of_node}: {reason}; these kernels run instead: {kernels}"


def replace_steps(program: Program, fallbacks: Mapping[str, Program]) -> Program:
    """Return a program without jumps with the steps of its fallbacks, by symbol, in the place of its own.

    Raises: ArtifactCorruptedError when they do not fit together.
    """
    registers = list(program.registers)
    steps: list[Step] = []
    for step in program.steps:
        fallback = fallbacks.get(step.symbol)
        steps += [step] if fallback is None else _steps_of(fallback, step, registers)
    return replace(program, registers=tuple(registers), steps=tuple(steps))


def _steps_of(fallback: Program, step: Step, registers: list[Register]) -> Iterator[Step]:
    """Yield the fallback's steps over the registers of a step; registers that it has beside these are added."""
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
    """Hold fallbacks to what the steps of programs give them and take.

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
