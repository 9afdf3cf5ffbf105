"""Stages: a first block, and the maps that take its elements while they are in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.tir import Axis, Buffer, ComputeBlock, Expr, IterVar, Load, PrimFunc
from kernelyard.tir.expr import index
from kernelyard.tir.primfunc import REDUCE, SPATIAL, walk
from kernelyard.tir.simplify import Simplifier
from kernelyard.tir.visitor import ExprRewriter, rewrite_block, substitute_axes


@dataclass(frozen=True)
class Stage:
    """Blocks over the same spatial axes, called s0, s1, ...; only the first may reduce, over r0, r1, ...

    inside: buffers that are read and written in this stage alone, each element at its own point: they need no memory.
    """

    blocks: tuple[ComputeBlock, ...]
    inside: frozenset[Buffer] = frozenset()

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
        return self.first.reducer is None and bool(self.reduce)

    @property
    def written(self) -> frozenset[Buffer]:
        """The buffers that its blocks write to memory."""
        return frozenset(block.output for block in self.blocks) - self.inside

    @property
    def points(self) -> Dim:
        """How many points the spatial axes have."""
        return extent_of(self.spatial)


def extent_of(axes: Sequence[IterVar]) -> Dim:
    """How many points some axes have."""
    return dims.product(axis.extent for axis in axes)


def axes_of(expr: Expr) -> frozenset[str]:
    """Names of the axes that an expression depends on."""
    return frozenset(e.name for e in walk(expr) if isinstance(e, Axis))


def place_of(block: ComputeBlock) -> Load:
    """The element that a block writes, as others read it: axes of extent 1 are 0."""
    zeros = {axis.name: index(0) for axis in block.axes if axis.extent == 1}
    return Load(block.output, tuple(substitute_axes(e, zeros) for e in block.indices))


def step_along(load: Load, axis: str, extents: dict[str, Dim]) -> Dim | None:
    """How far apart in memory the elements are that neighbours along an axis read; None where that varies."""
    simplify = Simplifier(extents)
    step: Dim = 0
    for at, stride in zip(load.indices, load.buffer.strides, strict=True):
        if axis not in axes_of(at):
            continue
        moved = simplify(substitute_axes(at, {axis: Axis(axis) + 1}) - at)
        value = getattr(moved, "value", None)
        if not isinstance(value, int):
            return None
        step = step + value * stride
    return step


def make_stages(function: PrimFunc) -> list[Stage]:
    """A function's blocks in stages, in order."""
    groups: list[list[ComputeBlock]] = []
    for block in map(_with_common_names, function.blocks):
        if groups and _continues(groups[-1], block):
            groups[-1].append(block)
        else:
            groups.append([block])
    users = {
        buffer: {n for n, group in enumerate(groups) for b in group if buffer in b.reads or b.output == buffer}
        for buffer in function.locals
    }
    whole = {b.output for group in groups for b in group if b.writes_spatial_axes}
    return [
        Stage(tuple(group), frozenset(b for b, where in users.items() if where == {n} and b in whole))
        for n, group in enumerate(groups)
    ]


def _continues(group: Sequence[ComputeBlock], block: ComputeBlock) -> bool:
    """True for a map over the group's axes that reads what the group writes only where it is just written."""
    first = group[0]
    is_ordered = first.reducer is None and bool(first.reduce_axes)
    extents = [[axis.extent for axis in each.spatial_axes] for each in (first, block)]
    if block.reduce_axes or is_ordered or extents[0] != extents[1]:
        return False
    written = {b.output for b in group}
    if block.output in written | block.reads | set().union(*(b.reads for b in group)):
        return False
    places = {place_of(b) for b in group if b.writes_spatial_axes}
    handed_on = [load for load in block.loads if load.buffer in written]
    return block.writes_spatial_axes and all(load in places for load in handed_on)


def _with_common_names(block: ComputeBlock) -> ComputeBlock:
    """The block with its axes called s0, s1, ... and r0, r1, ...; what it reads at axes of extent 1 is read at 0."""
    names: dict[str, str] = {}
    for kind, prefix in ((SPATIAL, "s"), (REDUCE, "r")):
        names.update({axis.name: f"{prefix}{n}" for n, axis in enumerate(a for a in block.axes if a.kind == kind)})
    renaming = ExprRewriter(lambda e: Axis(names[e.name]) if isinstance(e, Axis) else e)
    axes = tuple(replace(axis, name=names[axis.name]) for axis in block.axes)
    renamed = replace(rewrite_block(block, renaming), axes=axes)
    zeros = {axis.name: index(0) for axis in axes if axis.extent == 1}
    if not zeros:
        return renamed
    lowered = rewrite_block(renamed, Simplifier({axis.name: axis.extent for axis in axes}))
    lowered = rewrite_block(lowered, ExprRewriter(lambda e: zeros.get(e.name, e) if isinstance(e, Axis) else e))
    return replace(lowered, indices=renamed.indices)
