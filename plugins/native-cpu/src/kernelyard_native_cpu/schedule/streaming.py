"""Streaming stores: results larger than the caches are written past them.

A plain store reads the cache line that it writes to, and puts another line out. Of a result that no cache holds whole,
nothing is left for a reader that begins where the result does: a third of what a copy moves is moved for nothing.
"""

from __future__ import annotations

from math import gcd

from kernelyard import dims, dtypes
from kernelyard.plugins.codegen_api import Affine, Axis, Buffer, ComputeBlock, Load, Stage, offset_of, walk
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.groups import Group
from kernelyard_native_cpu.schedule.plan import Plan, size_of

# A last-level cache, or the part of one that some cores share. A smaller result may still be there when it is read.
LEAST_STREAMED_BYTES = 32 << 20
# What processors collect to whole lines before they write it.
LEAST_BYTES = 16
# Where rows end inside of lines, those lines are written twice: one in so many vectors at most.
LEAST_VECTORS = 32


def choose_streamed_buffers(group: Group, stage: Stage, plan: Plan, machine: Machine) -> dict[Buffer, int]:
    """Return the buffers of a stage that are stored past the caches, with how many lanes at once.

    Nothing in the same loop may read them back, but for a scan, which knows what it reads.
    """
    if machine.architecture != "x86_64" or group.step is not None or not _is_bound_by_memory(stage, plan):
        return {}
    read = _read_back(group, stage, plan)
    rows = tuple(axis.name for axis in stage.spatial[: group.shared])
    large = [block for block in stage.blocks if _bytes_written(block) >= LEAST_STREAMED_BYTES]
    lanes = {block.output: _count_aligned_lanes(block, plan, rows) for block in large if block.output not in read}
    return {buffer: n for buffer, n in lanes.items() if n * dtypes.itemsize(buffer.dtype) >= LEAST_BYTES}


def _read_back(group: Group, stage: Stage, plan: Plan) -> set[Buffer]:
    readers = [each for each in group.stages if plan.scan is None or each is not stage]
    return {load.buffer for each in readers for load in each.loads}


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


def _count_aligned_lanes(block: ComputeBlock, plan: Plan, rows: tuple[str, ...]) -> int:
    """Return into how many lanes vectors are cut to be aligned where the buffer is, and to fill its lines one after
    another; 0: they are not. rows: the axes around those of the plan."""
    if plan.vector is None:  # a scan looks for the lines itself
        return plan.scan.lanes if plan.scan and plan.scan.lanes > 1 else 0
    offset = offset_of(block.output, block.indices)
    if plan.masked or plan.transposed_axis is not None or offset.coefficient(plan.vector) != 1:
        return 0
    aligned = gcd(plan.lanes, *_steps(offset, plan, rows))
    is_long = not rows and size_of(plan.extents[plan.vector]) >= LEAST_VECTORS * plan.lanes
    return aligned if aligned == plan.lanes or is_long else 0


def _steps(offset: Affine, plan: Plan, rows: tuple[str, ...]) -> list[int]:
    """Return how far apart vectors may begin, in elements; 1 for what is not known before the kernel runs."""
    axes = (*rows, *plan.spatial, *plan.reduce)
    others = [name for name in axes if name != plan.vector and plan.extents[name] != 1]
    steps = [offset.constant, *map(offset.coefficient, others)]
    # The last vector of a row is moved back to end with it; where all is one row, that is once.
    steps += [plan.extents[str(plan.vector)]] if others else []
    are_axes = all(isinstance(atom, Axis) for atom, _ in offset.terms)
    return [step if isinstance(step, int) and are_axes else 1 for step in steps]
