"""Padding: a block computes more of an axis than there is, so that an operand may be read in whole blocks."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.dims import Dim
from kernelyard.tir.analysis import axes_of
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Const, Load
from kernelyard.tir.op_pattern import buffers_read
from kernelyard.tir.primfunc import SPATIAL, ComputeBlock, IterVar, PrimFunc
from kernelyard.tir.visitor import ExprRewriter, rename_buffers


def paddable_axis(function: PrimFunc, buffer: Buffer, place: int) -> IterVar | None:
    """Return the spatial axis that alone is index `place` of an input, where more of it can be computed: one block
    reads the input, each element of its result is written once, and no other operand is read along that axis.
    """
    reads = buffers_read(function, buffer)
    if len(reads) != 1:
        return None
    ((block, load),) = reads
    axis = next((axis for axis in block.spatial_axes if axis.axis == load.indices[place]), None)
    if axis is None or not block.writes_spatial_axes:
        return None
    without_load = ExprRewriter(lambda e: Const(0, e.dtype) if e == load else e)
    values = block.expressions[len(block.indices) :]
    others = [*map(without_load, values), *load.indices[:place], *load.indices[place + 1 :]]
    return None if any(axis.name in axes_of(other) for other in others) else axis


def pad_axis(function: PrimFunc, buffer: Buffer, place: int, extent: Dim) -> PrimFunc:
    """Return the function with the axis that `paddable_axis` names going up to `extent`, which is beyond the input:
    the caller lengthens the input. What is computed beyond the axis is kept in a local buffer, and read by
    nobody.
    """
    axis = paddable_axis(function, buffer, place)
    assert axis is not None
    blocks: list[ComputeBlock] = []
    renamed: dict[Buffer, Buffer] = {}
    for block in function.blocks:
        if buffer not in block.reads:
            blocks.append(rename_buffers(block, renamed))
            continue
        axes = tuple(replace(each, extent=extent) if each.name == axis.name else each for each in block.axes)
        shape = tuple(each.extent for each in axes if each.kind == SPATIAL)
        output = block.output
        padded = Buffer(_fresh(function, f"{output.name}_padded"), shape, output.dtype, "local")
        blocks.append(replace(block, axes=axes, output=padded))
        if output in function.outputs:
            blocks.append(_copy(padded, output, block.step_axis))
        else:
            renamed[output] = padded
    locals_ = tuple(each for each in function.locals if each not in renamed)
    made = next(block.output for block in blocks if buffer in block.reads)
    return PrimFunc(function.params, tuple(blocks), function.num_outputs, (*locals_, made), function.attrs)


def _copy(source: Buffer, target: Buffer, step: IterVar | None) -> ComputeBlock:
    axes = tuple(IterVar(f"c{number}", extent) for number, extent in enumerate(target.shape))
    indices = tuple(axis.axis for axis in axes)
    outside = () if step is None else (step,)
    return ComputeBlock(f"{target.name}_copy", (*outside, *axes), target, indices, Load(source, indices))


def _fresh(function: PrimFunc, wanted: str) -> str:
    taken = {buffer.name for buffer in (*function.params, *function.locals)}
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
