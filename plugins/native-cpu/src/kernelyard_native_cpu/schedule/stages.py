"""Which blocks run together.

A stage is one loop nest: a first block and the maps that take its elements while they are in registers. A group is one
parallel loop: stages that share leading axes and run row by row, so that what they hand over stays in cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.tir import Axis, Binary, Buffer, ComputeBlock, Expr, IterVar, Load, PrimFunc
from kernelyard.tir.expr import index
from kernelyard.tir.primfunc import REDUCE, SPATIAL
from kernelyard.tir.visitor import ExprRewriter, rewrite_block
from kernelyard_native_cpu.schedule.affine import axes_of, offset_of


@dataclass(frozen=True)
class Stage:
    """Blocks over the same spatial axes; only the first may reduce."""

    blocks: tuple[ComputeBlock, ...]

    @property
    def first(self) -> ComputeBlock:
        return self.blocks[0]

    @property
    def spatial(self) -> tuple[IterVar, ...]:
        return self.first.spatial_axes

    @property
    def reduce(self) -> tuple[IterVar, ...]:
        return self.first.reduce_axes

    @property
    def is_ordered(self) -> bool:
        """Its reduce axes order the writes: a scan or a scatter."""
        return self.first.reducer is None and bool(self.first.reduce_axes)

    @property
    def reads_itself(self) -> bool:
        """Some element is changed in place: no point may be computed twice."""
        return any(block.output in block.reads for block in self.blocks)

    @property
    def is_contraction(self) -> bool:
        """A reduction in which operands are used again along different axes: worth tiles in registers."""
        if self.first.reducer != "sum" or not self.reduce:
            return False
        names = {axis.name for axis in self.spatial if axis.extent != 1}
        used = [names & axes_of(load) for load in self.first.loads]
        return any(a - b and b - a for a in used for b in used)


@dataclass(frozen=True)
class Group:
    """Stages under one parallel loop over the first `shared` axes; `private` locals are kept per thread, without
    these axes."""

    stages: tuple[Stage, ...]
    shared: int = 0
    private: frozenset[Buffer] = frozenset()

    @property
    def rows(self) -> Dim:
        """The number of iterations of the shared loop."""
        return dims.product(axis.extent for axis in self.stages[0].spatial[: self.shared])


def with_common_names(block: ComputeBlock) -> ComputeBlock:
    """The block with its axes called s0, s1, ... and r0, r1, ..., so that equal positions have equal names.

    Reduce axes of extent 1 go: they stand in the way of seeing what is read where.
    """
    names: dict[str, str] = {}
    values: dict[str, Expr] = {axis.name: index(0) for axis in block.reduce_axes if axis.extent == 1}
    for kind, prefix in ((SPATIAL, "s"), (REDUCE, "r")):
        of_kind = [axis for axis in block.axes if axis.kind == kind and axis.name not in values]
        names.update({axis.name: f"{prefix}{n}" for n, axis in enumerate(of_kind)})
    keeps_reducing = block.reducer is None or any(name.startswith("r") for name in names.values())
    if not keeps_reducing:  # one axis stays, as what makes the block a reduction
        last = block.reduce_axes[-1:]
        names.update({axis.name: "r0" for axis in last})
        values = {name: value for name, value in values.items() if name not in names}
    values.update({old: Axis(new) for old, new in names.items()})
    rewriter = ExprRewriter(
        lambda expr: _without_zeros(values.get(expr.name, expr) if isinstance(expr, Axis) else expr)
    )
    renamed = rewrite_block(block, rewriter)
    return replace(renamed, axes=tuple(replace(a, name=names[a.name]) for a in block.axes if a.name in names))


def _without_zeros(expr: Expr) -> Expr:
    """`x + 0` as `x`, on indices."""
    zero = index(0)
    if isinstance(expr, Binary) and expr.op == "add" and expr.dtype == zero.dtype:
        return expr.b if expr.a == zero else expr.a if expr.b == zero else expr
    return expr


def make_groups(function: PrimFunc) -> tuple[Group, ...]:
    """The function's blocks in groups, in order."""
    blocks = [with_common_names(block) for block in function.blocks]
    stages = _make_stages(blocks)
    groups: list[Group] = []
    for stage in stages:
        joined = _join(groups[-1], stage) if groups else None
        if joined is None:
            groups.append(Group((stage,)))
        else:
            groups[-1] = joined
    return tuple(replace(group, private=_private_locals(group, groups, function.locals)) for group in groups)


def _make_stages(blocks: list[ComputeBlock]) -> list[Stage]:
    stages: list[Stage] = []
    for block in blocks:
        if stages and _continues(stages[-1], block):
            stages[-1] = Stage((*stages[-1].blocks, block))
        else:
            stages.append(Stage((block,)))
    return stages


def _extents(axes: tuple[IterVar, ...]) -> tuple[Dim, ...]:
    return tuple(axis.extent for axis in axes)


def _continues(stage: Stage, block: ComputeBlock) -> bool:
    """True for a map over the stage's axes that reads what the stage writes only where it is just written."""
    if block.reduce_axes or stage.is_ordered or _extents(block.spatial_axes) != _extents(stage.spatial):
        return False
    here = tuple(axis.axis for axis in block.spatial_axes)
    written = {b.output for b in stage.blocks}
    if block.output in written | block.reads | set().union(*(b.reads for b in stage.blocks)):
        return False
    in_place = {b.output for b in stage.blocks if b.writes_spatial_axes}
    handed_on = [load for load in block.loads if load.buffer in written]
    if not handed_on and not block.writes_spatial_axes:
        return False  # a part of a buffer: its loops are its own
    return all(load.buffer in in_place and load.indices == here for load in handed_on)


def _join(group: Group, stage: Stage) -> Group | None:
    """The group with the stage added, where they share rows; None where they are better apart."""
    if stage.is_contraction or any(member.is_contraction for member in group.stages):
        return None
    stages = (*group.stages, stage)
    limit = group.shared if len(group.stages) > 1 else len(stage.spatial)
    shared = min(limit, *(len(member.spatial) for member in stages))
    while shared and (not _share_rows(stages, shared) or _needs_last_for_lanes(stages, shared)):
        shared -= 1
    # Fewer shared axes than before would widen what the earlier stages hand over.
    if not shared or (len(group.stages) > 1 and shared < group.shared):
        return None
    joined = Group(stages, shared)
    return None if joined.rows == 1 else joined


def _share_rows(stages: tuple[Stage, ...], shared: int) -> bool:
    """True when no row needs what another row writes."""
    leading = _extents(stages[0].spatial[:shared])
    row = tuple(Axis(f"s{n}") for n in range(shared))
    if any(_extents(stage.spatial[:shared]) != leading for stage in stages):
        return False
    if all(len(stage.spatial) == shared and not stage.reduce for stage in stages):
        return False  # maps over equal axes: the last axis is left for vectors
    blocks = [block for stage in stages for block in stage.blocks]
    written = {block.output for block in blocks}
    if any(len(block.output.shape) < shared or block.indices[:shared] != row for block in blocks):
        return False
    return all(load.indices[:shared] == row for b in blocks for load in b.loads if load.buffer in written)


def _needs_last_for_lanes(stages: tuple[Stage, ...], shared: int) -> bool:
    """True when neighbours lie side by side along the last shared axis, and along no axis inside the rows."""
    last, inside = f"s{shared - 1}", False
    found = False
    for stage in stages:
        inner = [axis.name for axis in (*stage.spatial[shared:], *stage.reduce) if axis.extent != 1]
        for load in (load for block in stage.blocks for load in block.loads):
            offset = offset_of(load.buffer, load.indices)
            inside = inside or any(offset.coefficient(name) == 1 for name in inner)
            found = found or (bool(inner) and offset.coefficient(last) == 1)
    return found and not inside


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
