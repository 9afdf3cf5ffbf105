"""Templates of plans: straight-line code over the sizes that makes the plan of a graph, where its conditions hold.

Code is written of one traced lowering (`kernelyard_dnnl.trace`). What it makes is made as lowering would have, but for
what the library answers: each primitive has to be implemented as it was then, and where the library now prefers another
layout for constant weights, these are packed for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelyard.dims import DimTable
from kernelyard.runtime.api import MemoryPlanner, NamedTuple
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.packing import PackedConstants
from kernelyard_dnnl.plan import Plan, place_buffers
from kernelyard_dnnl.primitive import SLOW_TO_DESCRIBE, Primitive, Recipe, primitive_of
from kernelyard_dnnl.primitive_attributes import Binary
from kernelyard_dnnl.trace import TracedPrimitive
from kernelyard_dnnl.traced import Deferred, Tape, tape_of
from kernelyard_dnnl.values import Buffer, Operation, Value
from kernelyard_dnnl.work import fitting_threads, layouts_of


class _Step(NamedTuple):
    """Hold what is the same of an operation at all sizes; chosen: see `TracedPrimitive`."""

    label: str
    group: int | None
    groups: int
    implementation: str
    chosen: Mapping[int, tuple[str, int]]


class PlanTemplate:
    """Makes the plans of a graph for the sizes that fulfil its conditions, for at most so many threads."""

    def __init__(self, tape: Tape, operations: Sequence[Operation], threads: int) -> None:
        self._threads = threads
        self._steps = [_step(operation) for operation in operations]
        self._varying: set[int] = set()  # operations whose primitives were not as they had been
        self._dims = DimTable(tape.dims)  # pyright: ignore[reportArgumentType]
        self._make = _compile(tape, operations)

    def plan(self, values: Mapping[str, int], packed: PackedConstants, planner: MemoryPlanner) -> Plan | None:
        """Return the plan for these values of the symbolic dims; None where a condition does not hold, or the library
        answers otherwise."""
        try:
            made = self._make(*self._dims(values))
        except ZeroDivisionError:
            made = None
        if made is None:
            return None
        operations = [self._operation(step, *each) for step, each in zip(self._steps, made, strict=True)]
        try:
            if not all(self._is_implemented(number, operations[number]) for number in self._varying):
                return None  # before the library is asked about all else
            _generate(operations, packed)
        except StatusError:
            return None
        implemented = [self._is_implemented(number, each) for number, each in enumerate(operations)]
        if not all(implemented):  # of all: what varies is known then
            return None
        if not all(_has_chosen_layouts(*each, packed) for each in zip(self._steps, operations, strict=True)):
            return None
        packed.preparation.finish()
        return place_buffers(operations, planner)

    def _operation(self, step: _Step, code: Any, arguments: dict[int, Value], writes: Buffer) -> Operation:
        if isinstance(code, Recipe):
            code = primitive_of(code, fitting_threads(code.kind, code.arguments, self._threads))
        return Operation(code, arguments, writes, step.label, step.group, step.groups)

    def _is_implemented(self, number: int, operation: Operation) -> bool:
        """Tell if a primitive is implemented as it was. Raises: StatusError."""
        primitive = operation.code
        if not isinstance(primitive, Primitive) or primitive.implementation == self._steps[number].implementation:
            return True
        self._varying.add(number)
        return False


def _generate(operations: Sequence[Operation], packed: PackedConstants) -> None:
    """Have the library describe and generate all primitives. Raises: StatusError."""
    for operation in operations:
        primitive = operation.code
        if isinstance(primitive, Primitive) and not primitive.is_generated:
            _hold_layouts(primitive.recipe)
            if primitive.recipe.skipped and primitive.recipe.kind in SLOW_TO_DESCRIBE:
                primitive.describe()  # here: it moves on what another one, of other objects, was described by
            packed.preparation.begin(primitive.generate)
    packed.preparation.finish()


def _hold_layouts(recipe: Recipe) -> None:
    """Make the library's objects of layouts, which several threads are about to read."""
    for layout in layouts_of(recipe.arguments):
        _ = layout.native
    for post_op in recipe.post_ops:
        if isinstance(post_op, Binary):
            _ = post_op.operand.native


def _has_chosen_layouts(step: _Step, operation: Operation, packed: PackedConstants) -> bool:
    """Tell if the layouts that a primitive chose are those of its arguments; constants are packed for it.

    Raises: StatusError.
    """
    primitive = operation.code
    for number, (what, index) in step.chosen.items():
        assert isinstance(primitive, Primitive)
        value = operation.arguments[number]
        if primitive.has_layout(what, index, value.descriptor):
            continue
        if value.buffer.packed_from is None:
            return False
        operation.arguments[number] = packed.pack(value.buffer.packed_from[0], primitive.layout(what, index))
        operation.reads = [each.buffer for each in operation.arguments.values()]
    return True


def _step(operation: Operation) -> _Step:
    code = operation.code
    made_for = operation.label, operation.group, operation.groups
    if isinstance(code, TracedPrimitive):
        return _Step(*made_for, code.implementation, code.chosen)
    return _Step(*made_for, "", {})


def _compile(tape: Tape, operations: Sequence[Operation]) -> Callable[..., list[tuple[Any, ...]] | None]:
    """Return the function from the values of dims to (code, arguments, what it writes) of each operation."""
    writer = _Writer(tape)
    made = [writer.operation(operation) for operation in operations]
    parameters = ", ".join(f"d{number}" for number in range(len(tape.dims)))
    lines = "\n ".join([*tape.lines, f"return [{', '.join(made)}]"])
    space: dict[str, Any] = dict(tape.constants)
    exec(compile(f"def make({parameters}):\n {lines}", "<a plan's template>", "exec"), space)
    return space["make"]


class _Writer:
    """Writes operations as expressions of a tape's numbers, whose lines come before."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._buffers: dict[Buffer, str] = {}

    def operation(self, operation: Operation) -> str:
        """Return the expression of an operation: (code, arguments, what it writes)."""
        arguments = ", ".join(f"{number}: {self._value(value)}" for number, value in operation.arguments.items())
        return f"({self._code(operation.code)}, {{{arguments}}}, {self._buffer(operation.writes)})"

    def _code(self, code: Any) -> str:
        if isinstance(code, Deferred):
            call = ", ".join(map(self._tape.write, code.arguments))
            return f"{self._tape.constant(code.function)}({call})"
        return self._tape.write(code.recipe if isinstance(code, TracedPrimitive) else code)

    def _value(self, value: Value) -> str:
        if value.is_constant and tape_of((value.descriptor, value.offset)) is None:
            return self._tape.constant(value)
        parts = self._buffer(value.buffer), self._tape.write(value.descriptor), self._tape.write(value.offset)
        return self._tape.name(f"{self._tape.constant(Value)}({', '.join(parts)})", "v")

    def _buffer(self, buffer: Buffer) -> str:
        if buffer.constant is not None:
            return self._tape.constant(buffer)
        if buffer not in self._buffers:
            name = self._buffers[buffer] = f"b{len(self._buffers)}"
            size = self._tape.write(buffer.nbytes)
            self._tape.lines.append(f"{name} = {self._tape.constant(Buffer)}({size}, {buffer.argument})")
        return self._buffers[buffer]
