"""Skinny GEMM: the rows of the small operand are interleaved first.

A tile that holds all rows takes one element of each per step. Far apart, they are as many cache lines per step, which
map to the same cache sets where their distance is a large power of two; interleaved they are one.
"""

from __future__ import annotations

from dataclasses import replace

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import (
    SPATIAL,
    Axis,
    Buffer,
    Cast,
    ComputeBlock,
    Expr,
    ExprRewriter,
    IterVar,
    Load,
    PrimFunc,
    axes_of,
    offset_of,
    rewrite_block,
    walk,
)
from kernelyard_native_cpu.schedule.plan import size_of
from kernelyard_native_cpu.schedule.tiling import FEW_ROWS

# Fewer rows find their places in cache; fewer columns do not repay the copy; nearer rows share cache lines.
_LEAST_ROWS = 5
_LEAST_COLUMNS = 512
_LEAST_DISTANCE = 256

Steps = tuple[IterVar, ...]


def with_interleaved_rows(function: PrimFunc) -> PrimFunc:
    """Return the function with a copy of each such operand, made before the block that multiplies it."""
    blocks: list[ComputeBlock] = []
    copies: list[Buffer] = []
    for block in function.blocks:
        operand = _operand(block)
        if operand is None:
            blocks.append(block)
            continue
        copy, changed = _copy_operand(block, operand)
        blocks += (copy, changed)
        copies.append(copy.output)
    if not copies:
        return function
    locals_ = (*function.locals, *copies)
    return PrimFunc(function.params, tuple(blocks), function.num_outputs, locals_, function.attrs)


def _operand(block: ComputeBlock) -> tuple[Expr, IterVar, Steps] | None:
    """Return the value of the rows per step, widened where it is used so, with the axes of rows and of steps."""
    spatial = {axis.name: axis for axis in block.spatial_axes if axis.extent != 1}
    steps = tuple(axis for axis in block.reduce_axes if axis.extent != 1)
    if block.reducer != "sum" or not steps or not dtypes.is_float(block.body.dtype):
        return None
    for load in block.loads:
        names = axes_of(load) - {step.name for step in steps}
        (row,) = names if len(names) == 1 else ("",)
        if row not in spatial or not _lies_far_apart(load, spatial[row], steps):
            continue
        if _multiplies_wide_matrix(block, load, spatial[row], steps):
            return _as_used(load, block), spatial[row], steps
    return None


def _as_used(load: Load, block: ComputeBlock) -> Expr:
    """Return a load as the block uses it: cast, or as it is."""
    return next((e for e in walk(block.body) if isinstance(e, Cast) and e.x == load), load)


def _lies_far_apart(load: Load, row: IterVar, steps: Steps) -> bool:
    """Return True when a load has a known number of rows, each along memory, and they begin far from one another."""
    if not isinstance(row.extent, int) or not _LEAST_ROWS <= row.extent <= FEW_ROWS:
        return False
    offset = offset_of(load.buffer, load.indices)
    strides = [offset.coefficient(step.name) for step in steps]
    distance = offset.coefficient(row.name)
    is_far = isinstance(distance, int) and distance >= _LEAST_DISTANCE
    return is_far and strides[-1] == 1 and 0 not in strides and None not in strides


def _multiplies_wide_matrix(block: ComputeBlock, load: Load, row: IterVar, steps: Steps) -> bool:
    """Return True when what a load is multiplied by has many columns, is read along them, and is the same for all
    rows."""
    columns = {axis.name: size_of(axis.extent) for axis in block.spatial_axes if axis.extent != 1 and axis != row}
    others = [each for each in block.loads if each != load]
    if len(columns) != 1 or max(columns.values()) < _LEAST_COLUMNS or not others:
        return False
    names = {step.name for step in steps}
    if not set().union(*map(axes_of, others)) <= {*names, *columns}:
        return False
    matrix = max(others, key=lambda each: size_of(each.buffer.numel))
    offset = offset_of(matrix.buffer, matrix.indices)
    return axes_of(matrix) >= {*columns} and all(offset.coefficient(name) != 1 for name in names)


def _copy_operand(block: ComputeBlock, operand: tuple[Expr, IterVar, Steps]) -> tuple[ComputeBlock, ComputeBlock]:
    """Return the block that copies, and the one that reads the copy."""
    element, row, steps = operand
    buffer = Buffer(f"rows of {block.name}", tuple(axis.extent for axis in (*steps, row)), element.dtype, "local")
    indices = tuple(Axis(axis.name) for axis in (*steps, row))
    outside = () if block.step_axis is None else (block.step_axis,)
    axes = (*outside, *(replace(axis, kind=SPATIAL) for axis in (*steps, row)))
    copy = ComputeBlock(buffer.name, axes, buffer, indices, element)
    rewriter = ExprRewriter(lambda expr: Load(buffer, indices) if expr == element else expr)
    return copy, rewrite_block(block, rewriter)
