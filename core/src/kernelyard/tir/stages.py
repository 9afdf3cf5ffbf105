"""Group the blocks of a PrimFunc into stages: a first block, and elementwise blocks that read it in registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.tir.analysis import axes_of
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Binary, Expr, Load, index
from kernelyard.tir.primfunc import ComputeBlock, IterVar
from kernelyard.tir.simplify import Simplifier
from kernelyard.tir.visitor import ExprRewriter, rewrite_block, substitute_axes


@dataclass(frozen=True)
class Stage:
    """One loop nest: blocks over the same spatial axes (s0, s1, ...); only the first may reduce (over r0, r1, ...).

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
    def step(self) -> IterVar | None:
        """The axis (t0) of the loop that the stage shares with its neighbours."""
        return self.first.step_axis

    @property
    def points(self) -> Dim:
        """The number of points of the spatial axes."""
        return extent_of(self.spatial)

    @property
    def written(self) -> frozenset[Buffer]:
        """The buffers that the blocks write to memory."""
        return self.outputs - self.inside

    @property
    def outputs(self) -> frozenset[Buffer]:
        """The buffers that the blocks write, to memory or to registers."""
        return frozenset(block.output for block in self.blocks)

    @property
    def loads(self) -> list[Load]:
        """All loads of the blocks, in order."""
        return [load for block in self.blocks for load in block.loads]

    @property
    def input_loads(self) -> list[Load]:
        """The loads of what this stage does not write."""
        outputs = self.outputs
        return [load for load in self.loads if load.buffer not in outputs]

    @property
    def is_ordered(self) -> bool:
        """True for a scan or a scatter: the reduce axes order the writes."""
        return self.first.reducer is None and bool(self.reduce)

    @property
    def reads_itself(self) -> bool:
        """True where an element is changed in place: no point may be computed twice."""
        return any(block.output in block.reads for block in self.blocks)

    @property
    def is_contraction(self) -> bool:
        """True for a sum in which operands are used again along different axes: worth tiles in registers.

        What is read once for a whole sum, such as the place of a row in a table, is no operand.
        """
        if self.first.reducer != "sum" or not self.reduce:
            return False
        names = {axis.name for axis in self.spatial if axis.extent != 1}
        summed = {axis.name for axis in self.reduce if axis.extent != 1}
        used = [names & axes for axes in map(axes_of, self.first.loads) if axes & summed or not summed]
        return any(a - b and b - a for a in used for b in used)


def extents_of(axes: Sequence[IterVar]) -> tuple[Dim, ...]:
    """Return the extent of each axis."""
    return tuple(axis.extent for axis in axes)


def extent_of(axes: Sequence[IterVar]) -> Dim:
    """Return the number of points of some axes."""
    return dims.product(extents_of(axes))


def element_of(block: ComputeBlock) -> Load:
    """Return the element that a block writes, as a load by others."""
    return Load(block.output, block.indices)


def element_at_zeros(block: ComputeBlock) -> Load:
    """Return the element that a block writes, as blocks `with_zeros` load it: axes of extent 1 are 0."""
    return Load(block.output, tuple(substitute_axes(e, _zeros(block.axes)) for e in block.indices))


def with_zeros(block: ComputeBlock) -> ComputeBlock:
    """Return the block with 0 for axes of extent 1 in all that it reads; its own indices stay."""
    zeros = _zeros(block.axes)
    if not zeros:
        return block
    lowered = rewrite_block(block, Simplifier({axis.name: axis.extent for axis in block.axes}))
    at_zero = ExprRewriter(lambda e: zeros.get(e.name, e) if isinstance(e, Axis) else e)
    return replace(rewrite_block(lowered, at_zero), indices=block.indices)


def without_single_steps(block: ComputeBlock) -> ComputeBlock:
    """Return the block without reduce axes of extent 1, which hide what is read where; a reduction keeps one axis."""
    single = [axis for axis in block.reduce_axes if axis.extent == 1]
    if block.reducer is not None and len(single) == len(block.reduce_axes):
        single = single[:-1]
    if not single:
        return block
    zeros = _zeros(single)
    at_zero = ExprRewriter(lambda e: _remove_zeros(zeros.get(e.name, e) if isinstance(e, Axis) else e))
    return replace(rewrite_block(block, at_zero), axes=tuple(axis for axis in block.axes if axis not in single))


def _zeros(axes: Sequence[IterVar]) -> dict[str, Expr]:
    return {axis.name: index(0) for axis in axes if axis.extent == 1}


def _remove_zeros(expr: Expr) -> Expr:
    """Rewrite `x + 0` to `x`, on indices."""
    zero = index(0)
    if isinstance(expr, Binary) and expr.op == "add" and expr.dtype == zero.dtype:
        return expr.b if expr.a == zero else expr.a if expr.b == zero else expr
    return expr


def make_stages(
    blocks: Iterable[ComputeBlock],
    locals_: Sequence[Buffer] = (),
    element: Callable[[ComputeBlock], Load] = element_of,
    moves: bool = False,
) -> list[Stage]:
    """Group blocks that are named `with_common_axes` into stages, in order.

    locals_: the function's own buffers. element: how others load the element that a block writes. moves: a block that
    takes an element from a register may write it to another point than its own.
    """
    groups: list[list[ComputeBlock]] = []
    for block in blocks:
        if groups and _continues(groups[-1], block, element, moves):
            groups[-1].append(block)
        else:
            groups.append([block])
    touched = [frozenset().union(*(block.reads | {block.output} for block in group)) for group in groups]
    users = Counter(chain.from_iterable(touched))
    whole = {block.output for group in groups for block in group if block.writes_spatial_axes}
    private = frozenset(buffer for buffer in locals_ if users[buffer] == 1 and buffer in whole)
    return [Stage(tuple(group), private & buffers) for group, buffers in zip(groups, touched, strict=True)]


def _continues(
    group: Sequence[ComputeBlock], block: ComputeBlock, element: Callable[[ComputeBlock], Load], moves: bool
) -> bool:
    """Return True for an elementwise block over the group's axes that reads each written element at its own point."""
    stage = Stage(tuple(group))
    if block.step_axis != stage.step or block.reduce_axes or stage.is_ordered:
        return False
    if extents_of(block.spatial_axes) != extents_of(stage.spatial):
        return False
    if block.output in stage.outputs | block.reads | set().union(*(b.reads for b in group)):
        return False
    just_written = {element(b) for b in group if b.writes_spatial_axes}
    handed_on = [load for load in block.loads if load.buffer in stage.outputs]
    if not block.writes_spatial_axes and not (moves and handed_on):
        return False  # a part of a buffer: its loops are its own
    return all(load in just_written for load in handed_on)
