"""Stages: each is one loop nest, a first block and the maps that take its elements while they are in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelyard.dims import Dim
from kernelyard.tir import Axis, Binary, ComputeBlock, Expr, IterVar
from kernelyard.tir.expr import index
from kernelyard.tir.primfunc import REDUCE, SPATIAL
from kernelyard.tir.visitor import ExprRewriter, rewrite_block
from kernelyard_native_cpu.schedule.affine import axes_of


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


def make_stages(blocks: Sequence[ComputeBlock]) -> list[Stage]:
    """Blocks in loop nests, in order."""
    stages: list[Stage] = []
    for block in blocks:
        if stages and _continues(stages[-1], block):
            stages[-1] = Stage((*stages[-1].blocks, block))
        else:
            stages.append(Stage((block,)))
    return stages


def extents_of(axes: tuple[IterVar, ...]) -> tuple[Dim, ...]:
    return tuple(axis.extent for axis in axes)


def _continues(stage: Stage, block: ComputeBlock) -> bool:
    """True for a map over the stage's axes that reads what the stage writes only where it is just written."""
    if block.reduce_axes or stage.is_ordered or extents_of(block.spatial_axes) != extents_of(stage.spatial):
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
