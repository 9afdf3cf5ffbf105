"""Groups: each is one parallel loop, over the tasks of one stage, or over rows that several stages share.

Stages share rows where what they hand over stays in its row, and so in cache: the blocks of softmax and of
norms.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kernelyard.plugins.codegen_api import (
    Axis,
    Buffer,
    ComputeBlock,
    Expr,
    Load,
    PrimFunc,
    Stage,
    extents_of,
    make_stages,
    offset_of,
    position_axis,
    with_common_axes,
    without_single_steps,
)
from kernelyard_native_cpu.schedule.back_to_back_matmul import back_to_back_group
from kernelyard_native_cpu.schedule.blocked_axes import split_blocked_axes
from kernelyard_native_cpu.schedule.group import Group
from kernelyard_native_cpu.schedule.loops import is_near


def make_groups(function: PrimFunc) -> tuple[Group, ...]:
    """Return the function's blocks in groups, in order."""
    blocks = (with_common_axes(without_single_steps(block)) for block in function.blocks)
    stages = make_stages(blocks, function.locals, moves=True)
    groups: list[Group] = []
    while stages:
        fused = back_to_back_group(stages, frozenset(function.locals))
        if fused is not None:
            groups.append(fused)
            stages = stages[len(fused.stages) :]
            continue
        stage, *stages = stages
        stage = split_blocked_axes(stage)
        joined = _join(groups[-1], stage) if groups and not groups[-1].block_rows else None
        if joined is None:
            groups.append(Group((stage,)))
        else:
            groups[-1] = joined
    return tuple(_with_private_locals(group, groups, function.locals) for group in groups)


def _join(group: Group, stage: Stage) -> Group | None:
    """Return the group with the stage added, where they share rows; None where they are better apart."""
    if stage.step != group.step or stage.is_contraction or any(member.is_contraction for member in group.stages):
        return None
    stages = (*group.stages, stage)
    limit = group.shared if len(group.stages) > 1 else len(stage.spatial)
    shared = min(limit, *map(_leading_axes, stages))
    while shared and (not _share_rows(stages, shared) or _needs_last_for_lanes(stages, shared)):
        shared -= 1
    # Fewer shared axes than before would widen what the earlier stages hand over.
    if not shared or (len(group.stages) > 1 and shared < group.shared):
        return None
    joined = Group(stages, shared)
    return None if joined.rows == 1 else joined


def _leading_axes(stage: Stage) -> int:
    """Return how many axes may be shared: a row that is sorted is not sorted again for each position in it."""
    position = position_axis(stage.first)
    return len(stage.spatial) if position is None else stage.spatial.index(position)


def _share_rows(stages: tuple[Stage, ...], shared: int) -> bool:
    """Return True when no row needs what another row writes."""
    leading = extents_of(stages[0].spatial[:shared])
    row = tuple(Axis(f"s{n}") for n in range(shared))
    if any(extents_of(stage.spatial[:shared]) != leading for stage in stages):
        return False
    if all(len(stage.spatial) == shared and not stage.reduce for stage in stages):
        return False  # elementwise over equal axes: the last axis is left for vectors
    if any(block.indices[:shared] != row for stage in stages for block in stage.blocks):
        return False
    written = frozenset[Buffer]().union(*(stage.outputs for stage in stages))
    return all(load.indices[:shared] == row for stage in stages for load in stage.loads if load.buffer in written)


def _needs_last_for_lanes(stages: tuple[Stage, ...], shared: int) -> bool:
    """Return True when loads are contiguous along the last shared axis, and along no axis inside the rows; or those of
    a sum of products are gathered there, as the values of attention are, and none is along the last shared axis."""
    last, inside = f"s{shared - 1}", False
    if any(map(partial(_gathers_less_along, last, shared), stages)):
        return True
    found = False
    for stage in stages:
        inner = [axis.name for axis in (*stage.spatial[shared:], *stage.reduce) if axis.extent != 1]
        for load in stage.loads:
            offset = offset_of(load.buffer, load.indices)
            inside = inside or any(offset.coefficient(name) == 1 for name in inner)
            found = found or (bool(inner) and offset.coefficient(last) == 1)
    return found and not inside


def _gathers_less_along(last: str, shared: int, stage: Stage) -> bool:
    """Return True for a sum with loads that are contiguous along an axis, and far apart along those inside the rows."""
    inner = [axis.name for axis in (*stage.spatial[shared:], *stage.reduce) if axis.extent != 1]
    if stage.first.reducer != "sum" or not inner:
        return False
    offsets = [offset_of(load.buffer, load.indices) for load in stage.first.loads]
    far = [offset for offset in offsets if not any(is_near(offset.coefficient(name)) for name in inner)]
    steps = [offset.coefficient(last) for offset in offsets]
    return any(offset.coefficient(last) == 1 for offset in far) and all(step in (0, 1) for step in steps)


def _with_private_locals(group: Group, groups: list[Group], locals_: tuple[Buffer, ...]) -> Group:
    return group if group.block_rows else replace(group, private=_private_locals(group, groups, locals_))


def _private_locals(group: Group, groups: list[Group], locals_: tuple[Buffer, ...]) -> frozenset[Buffer]:
    """Locals that only this group touches, always in its own row."""
    if not group.shared:
        return frozenset()
    elsewhere: set[Buffer] = set()
    for other in groups:
        if other is not group:
            elsewhere.update(*((b.output, *b.reads) for stage in other.stages for b in stage.blocks))
    row = tuple(Axis(f"s{n}") for n in range(group.shared))
    blocks = [block for stage in group.stages for block in stage.blocks]
    own: set[Buffer] = {b.output for b in blocks} & set(locals_)
    return frozenset(buffer for buffer in own - elsewhere if _always_in_row(buffer, blocks, row))


def _always_in_row(buffer: Buffer, blocks: list[ComputeBlock], row: tuple[Expr, ...]) -> bool:
    loads: list[Load] = [load for block in blocks for load in block.loads if load.buffer == buffer]
    return all(load.indices[: len(row)] == row for load in loads)
