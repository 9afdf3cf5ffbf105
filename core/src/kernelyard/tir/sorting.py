"""Rows of a block that sorts: which of its points take their places from the same sorted row."""

from __future__ import annotations

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.tir.analysis import axes_of
from kernelyard.tir.expr import Axis, Const
from kernelyard.tir.primfunc import SORTS, ComputeBlock, IterVar


def sorts(block: ComputeBlock) -> bool:
    """Return True for an argsort, ascending or descending."""
    return block.reducer in SORTS


def position_axis(block: ComputeBlock) -> IterVar | None:
    """Return the spatial axis that counts the positions in a sorted row; None where each point has a row of its own.

    Example:
        >>> from kernelyard.ir import TensorType
        >>> from kernelyard.tir.builder import PrimFuncBuilder
        >>> b = PrimFuncBuilder()
        >>> x = b.input("x", TensorType((4, 9), "float32"))
        >>> first = b.reduce("argsort", (4, 2), (9,), lambda at, p: x[at[0], p[0]], arg=lambda at, p: at[1])
        >>> position_axis(b.finish((first,)).blocks[0])
        IterVar(name='i1', extent=2, kind='spatial')
    """
    if not sorts(block) or not isinstance(block.arg, Axis) or block.arg.name in axes_of(block.body):
        return None
    return next(axis for axis in block.spatial_axes if axis.name == block.arg.name)


def rows_of(block: ComputeBlock) -> tuple[IterVar, ...]:
    """Return the spatial axes that count the rows that are sorted."""
    position = position_axis(block)
    return tuple(axis for axis in block.spatial_axes if axis != position)


def positions_used(block: ComputeBlock) -> Dim:
    """Return how many positions of a sorted row are asked for, from the first on: all, where that is not known."""
    position = position_axis(block)
    if position is not None:
        return position.extent
    if isinstance(block.arg, Const):
        return int(block.arg.value) + 1
    return block.reduce_axes[0].extent


def work_of(block: ComputeBlock) -> Dim:
    """Return the number of points at which the bodies of a block are computed: a sorted row counts once."""
    axes = (*rows_of(block), *block.reduce_axes) if sorts(block) else block.axes
    return dims.product(axis.extent for axis in axes)
