"""A plan: the operations of a graph at known shapes, and where each of their buffers lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelyard.runtime.api import Lifetime, MemoryPlanner, NamedTuple, align
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.values import Buffer, Operation, Value

if TYPE_CHECKING:
    from kernelyard_dnnl.lowering import Lowering


class Plan(NamedTuple):
    """Operations in order, bound to no address; shared by all calls with these shapes.

    offsets: of the planned buffers in the workspace. scratch: the offset of the operations' scratch memory, which
    all share. nbytes: of the workspace.
    """

    operations: tuple[Operation, ...]
    offsets: dict[Buffer, int]
    scratch: int
    nbytes: int

    @property
    def implementations(self) -> list[tuple[str, str]]:
        """The nodes in execution order, each with the name of its implementation, oneDNN's or ours."""
        return [(operation.label, operation.code.implementation) for operation in self.operations]


def make_plan(lowering: Lowering, planner: MemoryPlanner) -> Plan:
    """Lower a graph and plan its buffers; `planner` may have planned other sizes before.

    Raises: StatusError, CodegenError.
    """
    operations = lower_operations(lowering)
    lowering.finish()
    return place_buffers(operations, planner)


def lower_operations(lowering: Lowering) -> list[Operation]:
    """Lower a graph; return its operations. Raises: StatusError, CodegenError."""
    from kernelyard_dnnl.primitives import MODULES, lowering_of  # these import this module's own

    outputs = lowering.run(lowering_of, MODULES)
    _deliver(lowering, outputs)
    return _drop_unread(lowering.operations)


def place_buffers(operations: Sequence[Operation], planner: MemoryPlanner) -> Plan:
    """Return the plan of operations: a place for each of their buffers."""
    lifetimes = _lifetimes(operations)
    memory = planner.plan(list(lifetimes.values()))
    scratch = max((operation.code.scratchpad_nbytes for operation in operations), default=0)
    offsets = dict(zip(lifetimes, memory.offsets, strict=True))
    return Plan(tuple(operations), offsets, align(memory.nbytes), align(memory.nbytes) + align(scratch))


def _deliver(lowering: Lowering, outputs: Sequence[Value]) -> None:
    """Have each output written to its argument: by the operation that makes it where possible, else by a copy."""
    first = len(lowering.graph.inputs)
    for number, value in enumerate(outputs):
        buffer = value.buffer
        whole = value.offset == 0 and buffer.nbytes == value.descriptor.nbytes
        if buffer.is_planned and whole and value.descriptor.is_plain:
            buffer.argument = first + number
            continue
        layout = dense(value.shape, value.descriptor.dtype)
        target = Value(Buffer(layout.nbytes, argument=first + number), layout)
        lowering.copy_into(value, target, f"output {number}")


def _drop_unread(operations: Sequence[Operation]) -> list[Operation]:
    """Drop the operations whose result nobody reads."""
    live: set[Buffer] = set()
    kept: list[Operation] = []
    for operation in reversed(operations):
        if operation.writes.argument is None and operation.writes not in live:
            continue
        live.update(operation.reads)
        kept.append(operation)
    return kept[::-1]


def _lifetimes(operations: Sequence[Operation]) -> dict[Buffer, Lifetime]:
    """Return the first and the last operation that touch each planned buffer."""
    lifetimes: dict[Buffer, Lifetime] = {}
    for time, operation in enumerate(operations):
        for buffer in operation.reads:
            if buffer.is_planned:
                known = lifetimes.get(buffer)
                lifetimes[buffer] = Lifetime(buffer.nbytes, known.first if known else time, time)
    return lifetimes
