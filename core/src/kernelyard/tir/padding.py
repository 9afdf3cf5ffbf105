"""Padding: a block computes more of an axis than there is, so that an operand may be read in whole blocks."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.dims import Dim
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Const, Load
from kernelyard.tir.primfunc import SPATIAL, ComputeBlock, IterVar, PrimFunc, walk
from kernelyard.tir.visitor import ExprRewriter, rename_buffers


def paddable_axis(function: PrimFunc, buffer: Buffer, place: int) -> IterVar | None:
    """The spatial axis that alone is index `place` of an input, where more of it can be computed: one block reads the
    input, each element of its result is written once, and no other operand is read along that axis."""
    readers = [block for block in function.blocks if buffer in block.reads]
    if len(readers) != 1:
        return None
    (block,) = readers
    named = {axis.name: axis for axis in block.spatial_axes}
    indices = [load.indices for load in block.loads if load.buffer == buffer]
    index = indices[0][place]
    if len(indices) != 1 or not isinstance(index, Axis) or index.name not in named or not block.writes_spatial_axes:
        return None
    without = ExprRewriter(lambda e: Const(0, e.dtype) if isinstance(e, Load) and e.buffer == buffer else e)
    others = [without(e) for e in (block.body, block.init, block.arg) if e is not None]
    others += [e for number, e in enumerate(indices[0]) if number != place]
    is_alone = not any(isinstance(e, Axis) and e.name == index.name for e in walk(*others))
    return named[index.name] if is_alone else None


def pad_axis(function: PrimFunc, buffer: Buffer, place: int, extent: Dim) -> PrimFunc:
    """The function with the axis that `paddable_axis` names going up to `extent`, which is beyond the input: whoever
    calls this makes the input longer. What is computed beyond the axis is kept in a local buffer, and read by nobody.
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
            blocks.append(_copy(padded, output))
        else:
            renamed[output] = padded
    locals_ = tuple(each for each in function.locals if each not in renamed)
    made = next(block.output for block in blocks if buffer in block.reads)
    return PrimFunc(function.params, tuple(blocks), function.num_outputs, (*locals_, made), function.attrs)


def _copy(source: Buffer, target: Buffer) -> ComputeBlock:
    axes = tuple(IterVar(f"c{number}", extent) for number, extent in enumerate(target.shape))
    indices = tuple(axis.axis for axis in axes)
    return ComputeBlock(f"{target.name}_copy", axes, target, indices, Load(source, indices))


def _fresh(function: PrimFunc, wanted: str) -> str:
    taken = {buffer.name for buffer in (*function.params, *function.locals)}
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
