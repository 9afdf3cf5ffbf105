"""Loops in common: whether blocks of several functions may run as one loop nest, and what that saves.

Blocks are given with their axes by position (`with_common_axes`), over buffers that are equal where they are the same
tensor. Those of the first function come before those of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelyard import dims, dtypes
from kernelyard.cached_property import cached_property
from kernelyard.dims import Dim, Shape
from kernelyard.tir.analysis import axes_of
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Binary, Const, DimValue, Expr, Load
from kernelyard.tir.op_pattern import is_pure, reads_transposed
from kernelyard.tir.primfunc import REDUCE, SPATIAL, STEP, ComputeBlock, walk
from kernelyard.tir.visitor import ExprRewriter, rewrite_block

Blocks = Sequence[ComputeBlock]

# A last axis this long fills vectors by itself: nothing is lost where it cannot be walked as one with the axis before.
LONG_AXIS = 32
# Rows that are worth a loop of their own: as many, to give every thread some, and as long, to fill vectors.
LEAST_ROWS, LEAST_ROW = 32, 16
_WIDEST = 8


def with_common_axes(block: ComputeBlock) -> ComputeBlock:
    """Return the block with its spatial axes called s0, s1, ..., its reduce axes r0, r1, ..., and its step axis t0."""
    names: dict[str, str] = {}
    for kind, prefix in ((SPATIAL, "s"), (REDUCE, "r"), (STEP, "t")):
        names |= {axis.name: f"{prefix}{n}" for n, axis in enumerate(a for a in block.axes if a.kind == kind)}
    renaming = ExprRewriter(lambda expr: Axis(names[expr.name]) if isinstance(expr, Axis) else expr)
    axes = tuple(replace(axis, name=names[axis.name]) for axis in block.axes)
    return replace(rewrite_block(block, renaming), axes=axes)


# --- elementwise blocks over the same points ----------------------------------------------------------------------
def points_of(blocks: Blocks) -> Shape | None:
    """Return the extents of the axes when all blocks are elementwise over the same points and hand on, if anything, the
    element just written; None otherwise.
    """
    extents = _extents(blocks[0])
    here = _point(blocks[0])
    written: set[Buffer] = set()
    for block in blocks:
        if block.reduce_axes or block.indices != here or _extents(block) != extents:
            return None
        if block.output in written or block.output in block.reads or block.output.shape != extents:
            return None
        if any(load.buffer in written and load.indices != here for load in block.loads):
            return None
        written.add(block.output)
    return extents


@dataclass(eq=False)
class ElementwiseLoops:
    """Blocks that run as one loop nest, elementwise over `points`, and what each pair of such nests is compared by.

    points: None where the blocks are no such nest, about which nothing else may be asked then.
    """

    blocks: Blocks

    @cached_property
    def points(self) -> Shape | None:
        return points_of(self.blocks)

    @cached_property
    def outputs(self) -> frozenset[Buffer]:
        return frozenset(block.output for block in self.blocks)

    @cached_property
    def loads(self) -> frozenset[Load]:
        return frozenset(load for block in self.blocks for load in block.loads)

    @cached_property
    def written(self) -> frozenset[Load]:
        """The elements that the blocks write, as another block loads them."""
        return frozenset(Load(block.output, block.indices) for block in self.blocks)

    @cached_property
    def distinct_loads(self) -> frozenset[Load]:
        """The loads of another element at each point."""
        axes = {axis.name for axis in self.blocks[0].spatial_axes if axis.extent != 1}
        return frozenset(load for load in self.loads if axes_of(load) >= axes)

    @cached_property
    def is_wide(self) -> bool:
        used = {b.dtype for block in self.blocks for b in (block.output, *block.reads)}
        return any(dtypes.itemsize(dtype) == _WIDEST for dtype in used)

    @cached_property
    def is_straight(self) -> bool:
        return all(map(_is_straight, self.blocks))

    @cached_property
    def is_flat(self) -> bool:
        return all(map(_is_flat, self.blocks))

    @cached_property
    def strides(self) -> tuple[tuple[Buffer, object], ...]:
        """The access strides of each load from outside, without offsets."""
        loads = (load for load in self.loads if load.buffer not in self.outputs and not _is_one_place(load))
        return tuple((load.buffer, (tuple(map(_remove_start, load.indices)), load.buffer.strides)) for load in loads)

    @cached_property
    def bodies_of_axes(self) -> tuple[object, ...]:
        """The bodies that use axes as values, which are strides of their own."""
        return tuple(block.body for block in self.blocks if _uses_axes_as_numbers(block))

    def patterns(self, handed_on: frozenset[Buffer] = frozenset()) -> frozenset[object]:
        """Return the access strides of all loads, but of those that read what is handed on."""
        return frozenset((*(each for buffer, each in self.strides if buffer not in handed_on), *self.bodies_of_axes))


def may_run_together(first: ElementwiseLoops, second: ElementwiseLoops) -> bool:
    """Return True when both are elementwise over the same points, and the second reads, of what the first writes, the
    element just written.
    """
    if first.points is None or first.points != second.points or not first.outputs.isdisjoint(second.outputs):
        return False
    return all(load in first.written for load in second.loads if load.buffer in first.outputs)


def run_well_together(first: ElementwiseLoops, second: ElementwiseLoops) -> bool:
    """Return True when one loop nest is as good for both as their own were.

    Neighbours must lie along the same axis for both, and where one is walked as a single long axis, so must the other,
    if the last axis alone does not fill vectors; elements of 8 bytes halve the lanes of narrower ones.
    """
    if first.is_wide != second.is_wide:
        return False
    own, added = first.patterns(), second.patterns(first.outputs)
    if own == added or (not added and any(load.buffer in first.outputs for load in second.loads)):
        return True
    if not (first.is_straight and second.is_straight):
        return False
    last = next((extent for extent in reversed(_extents(first.blocks[0])) if extent != 1), 1)
    return not isinstance(last, int) or last >= LONG_AXIS or (first.is_flat and second.is_flat)


def shares_loads(first: ElementwiseLoops, second: ElementwiseLoops) -> bool:
    """Return True when both read the same elements, or the second those that the first has just written: one for each
    point.
    """
    return not second.distinct_loads.isdisjoint(first.loads | first.written)


def bytes_moved(blocks: Blocks) -> Dim:
    """Return the bytes that blocks load and store, each load counted at each point."""
    total: Dim = 0
    for block in blocks:
        sizes = sum(dtypes.itemsize(load.dtype) for load in block.loads) + dtypes.itemsize(block.output.dtype)
        total = total + dims.product(axis.extent for axis in block.axes) * sizes
    return total


def _extents(block: ComputeBlock) -> Shape:
    return tuple(axis.extent for axis in block.spatial_axes)


def _point(block: ComputeBlock) -> tuple[Expr, ...]:
    return tuple(axis.axis for axis in block.spatial_axes)


def _is_one_place(load: Load) -> bool:
    return all(isinstance(index, Const) for index in load.indices)


def _remove_start(index: Expr) -> Expr:
    match index:
        case Binary(op="add", a=a, b=Const() | DimValue()):
            return _remove_start(a)
    return index


def _uses_axes_as_numbers(block: ComputeBlock) -> bool:
    in_loads = {id(e) for load in block.loads for e in walk(*load.indices)}
    return any(isinstance(e, Axis) and id(e) not in in_loads for e in walk(block.body))


def _is_flat(block: ComputeBlock) -> bool:
    """Return True when the points may be walked as one long axis."""
    here, shape = block.indices, block.output.shape
    loads = (load for load in block.loads if not _is_one_place(load))
    return not _uses_axes_as_numbers(block) and all(
        each.indices == here and each.buffer.shape == shape for each in loads
    )


def _is_straight(block: ComputeBlock) -> bool:
    """Return True when neighbours along the last axis are neighbours, or the same, in whatever is read."""
    last = next((axis.name for axis in reversed(block.spatial_axes) if axis.extent != 1), None)
    return last is None or all(_is_straight_load(load, last) for load in block.loads)


def _is_straight_load(load: Load, last: str) -> bool:
    uses = [index for index in load.indices if last in axes_of(index)]
    return not uses or (uses == [load.indices[-1]] and _is_shifted(uses[0], last))


def _is_shifted(index: Expr, axis: str) -> bool:
    """Return True for the axis, perhaps with something added that does not depend on it."""
    match index:
        case Axis():
            return index.name == axis
        case Binary(op="add", a=a, b=b) if axis not in axes_of(a):
            return _is_shifted(b, axis)
        case Binary(op="add" | "sub", a=a, b=b):
            return _is_shifted(a, axis) and axis not in axes_of(b)
    return False


# --- rows ---------------------------------------------------------------------------------------------------------
def may_share_rows(first: Blocks, second: Blocks) -> bool:
    """Return True when one of the functions reduces rows, and the other works on the same rows, of which there are
    enough: the second reads the first's results, or both read the rows of one tensor. What transposes stays apart.
    """
    blocks = (*first, *second)
    if not all(map(_may_be_in_rows, blocks)):
        return False
    shared = _find_shared_axes(blocks)
    rows = _rows(blocks[0], shared)
    reducing = (each for each in (first, second) if any(block.reduce_axes for block in each))
    if not _is_at_least(rows, LEAST_ROWS) or any(_rows(e[0], _find_shared_axes(e)) != rows for e in reducing):
        return False
    return any(
        _is_row_of(load, shared) and (load.buffer in {b.output for b in first} or _reads_rows(first, load, shared))
        for block in second
        for load in block.loads
    )


def _may_be_in_rows(block: ComputeBlock) -> bool:
    return is_pure(block) and (bool(block.reduce_axes) or not reads_transposed(block))


def _find_shared_axes(blocks: Blocks) -> int:
    """Return the most leading axes that all blocks have, such that no row needs what another one writes."""
    most = min(len(block.spatial_axes) for block in blocks)
    return next((count for count in range(most, 0, -1) if _share(blocks, count)), 0)


def _share(blocks: Blocks, count: int) -> bool:
    leading, row = _extents(blocks[0])[:count], _point(blocks[0])[:count]
    written = {block.output for block in blocks}
    return all(_extents(block)[:count] == leading for block in blocks) and all(
        load.indices[:count] == row for block in blocks for load in block.loads if load.buffer in written
    )


def _rows(block: ComputeBlock, count: int) -> Dim:
    return dims.product(_extents(block)[:count])


def _is_row_of(load: Load, shared: int) -> bool:
    """Return True for a load that runs along the row, and so through memory."""
    row, inner = load.indices[:shared], load.indices[shared:]
    length = dims.product(load.buffer.shape[shared:])
    is_row = row == tuple(Axis(f"s{n}") for n in range(shared))
    return shared > 0 and is_row and all(isinstance(i, Axis) for i in inner) and _is_at_least(length, LEAST_ROW)


def _reads_rows(blocks: Blocks, wanted: Load, shared: int) -> bool:
    loads = [load for block in blocks for load in block.loads if load.buffer == wanted.buffer]
    return bool(loads) and all(_is_row_of(load, shared) for load in loads)


def _is_at_least(dim: Dim, least: int) -> bool:
    return not isinstance(dim, int) or dim >= least
