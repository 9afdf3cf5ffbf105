"""The memory plan of a program over its steps."""

from __future__ import annotations

from kernelyard.dims import product
from kernelyard.runtime.abi.memory import nbytes_of
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.program.execution_plan import ExecutionPlan, Shapes, spans_of
from kernelyard.runtime.program.program import Program
from kernelyard_view.build import Buffer, MemoryMap
from kernelyard_view.names import plain_name


def memory_map(executable: Executable, shapes: Shapes) -> MemoryMap | None:
    """Return the arena of a call with inputs of those shapes; None for a main function with branches or loops.

    Raises: InputShapeError.
    """
    program = executable.main
    if not isinstance(program, Program):
        return None
    plan = ExecutionPlan(program, shapes)
    labels = _labels(program)
    buffers = [
        Buffer(
            labels.get(register, f"r{register}"),
            plan.offsets[register],
            nbytes_of(plan.shapes[register], program.registers[register].dtype),
            first,
            last,
            program.registers[register].kind == "input",
        )
        for register, (first, last) in spans_of(program).items()
        if product(plan.shapes[register])
    ]
    steps = tuple(plain_name(step.label) or step.symbol for step in program.steps)
    weights = sum(array.nbytes for array in executable.constants.values())
    return MemoryMap(plan.arena_nbytes, weights, steps, tuple(buffers))


def _labels(program: Program) -> dict[int, str]:
    """Return what each register is called after: an input, or the step that writes it."""
    inputs = [number for number, register in enumerate(program.registers) if register.kind == "input"]
    labels = {number: f"input {spec.name}" for number, spec in zip(inputs, program.inputs, strict=True)}
    for step in program.steps:
        for register in step.outputs:
            labels.setdefault(program.root(register), plain_name(step.label) or step.symbol)
    return labels
