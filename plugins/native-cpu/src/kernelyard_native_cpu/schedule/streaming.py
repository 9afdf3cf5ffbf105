"""Streaming stores: results larger than the caches are written past them.

A plain store reads the cache line that it writes to, and puts another line out. Of a result that no cache holds whole,
nothing is left for a reader that begins where the result does: a third of what a copy moves is moved for nothing.
"""

from __future__ import annotations

from kernelyard import dims, dtypes
from kernelyard.plugins.codegen_api import Axis, Buffer, ComputeBlock, Load, Stage, offset_of, walk
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.groups import Group
from kernelyard_native_cpu.schedule.plan import Plan

# A last-level cache, or the part of one that some cores share. A smaller result may still be there when it is read.
LEAST_STREAMED_BYTES = 32 << 20


def streamed_buffers(group: Group, stage: Stage, plan: Plan, machine: Machine) -> frozenset[Buffer]:
    """Return the buffers of a stage that are stored past the caches.

    Nothing in the same loop may read them back, but for a scan, which knows what it reads.
    """
    if machine.architecture != "x86_64" or group.step is not None or not _is_bound_by_memory(stage, plan):
        return frozenset()
    readers = [each for each in group.stages if plan.scan is None or each is not stage]
    read = {load.buffer for each in readers for load in each.loads}
    rows = tuple(axis.name for axis in stage.spatial[: group.shared])
    large = [block for block in stage.blocks if _bytes_written(block) >= LEAST_STREAMED_BYTES]
    return frozenset(block.output for block in large if _fills_lines(block, plan, rows)) - read


def _is_bound_by_memory(stage: Stage, plan: Plan) -> bool:
    """Return True where moving bytes in order is what takes time: a gather waits for the lines that it asks for, and
    stores past the caches stand in their way."""
    if stage.reduce and plan.scan is None:
        return False
    return not any(isinstance(part, Load) for load in stage.loads for part in walk(*load.indices))


def _bytes_written(block: ComputeBlock) -> int:
    """Return how many bytes a block writes, 0 where that is not known before it runs."""
    points = dims.product(axis.extent for axis in block.axes)
    return points * dtypes.itemsize(block.output.dtype) if isinstance(points, int) else 0


def _fills_lines(block: ComputeBlock, plan: Plan, rows: tuple[str, ...]) -> bool:
    """Return True where stores fill line after line of an aligned buffer; rows: the axes around those of the plan."""
    if plan.vector is None:
        return plan.scan is not None and plan.scan.lanes > 1  # it looks for the lines itself
    if plan.masked or plan.transposed_axis is not None:
        return False
    offset = offset_of(block.output, block.indices)
    axes = (*rows, *plan.spatial, *plan.reduce)
    others = [name for name in axes if name != plan.vector and plan.extents[name] != 1]
    steps = [offset.constant, *map(offset.coefficient, others)]
    # The last vector of a row is moved back to end with it; where all is one row, that is once.
    steps += [plan.extents[plan.vector]] if others else []
    are_axes = all(isinstance(atom, Axis) for atom, _ in offset.terms)
    is_aligned = all(isinstance(step, int) and step % plan.lanes == 0 for step in steps)
    return are_axes and is_aligned and offset.coefficient(plan.vector) == 1
