"""Axes that are read by blocks become two, over the blocks and within one: those of packed operands (`i // 64` and
`i % 64`), rows of pages, and filters in groups (`i // 32`), which share their group's channels."""

from __future__ import annotations

from dataclasses import replace

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    ComputeBlock,
    Const,
    Expr,
    ExprRewriter,
    IterVar,
    Stage,
    index,
    position_axis,
    rewrite_block,
    walk,
)


def split_blocked_axes(stage: Stage) -> Stage:
    """Return the stage with its blocked spatial axes split, so that offsets are sums over axes again."""
    position = position_axis(stage.first)
    for axis in (axis for axis in stage.spatial if axis != position):
        size = _block_of(stage, axis)
        if size is not None:
            stage = _split(stage, axis, size)
    return stage


def _block_of(stage: Stage, axis: IterVar) -> int | None:
    """Return the size of the blocks by which an axis is read, where they divide it."""
    is_sum = stage.first.reducer == "sum" and bool(stage.reduce)
    indices = (index for load in stage.loads for index in load.indices)
    for part in walk(*indices):
        match part:
            case Binary(op="mod", a=Axis(name=axis.name), b=Const(value=size)) if _divides(int(size), axis.extent):
                return int(size)
            case Binary(op="floordiv", a=Axis(name=axis.name), b=Const(value=size)) if is_sum:
                if int(size) > 1 and _divides(int(size), axis.extent):
                    return int(size)
    return None


def _divides(size: int, extent: Dim) -> bool:
    """Return True where an extent is known to be a multiple, such as the rows of pages, whose number is not known."""
    return dims.floordiv(extent, size) * size == extent


def _split(stage: Stage, axis: IterVar, size: int) -> Stage:
    outer, inner = Axis(f"{axis.name}b"), Axis(axis.name)
    whole = outer * index(size) + inner

    def visit(expr: Expr) -> Expr:
        match expr:
            case Axis(name=axis.name):
                return whole
            case Binary(op="floordiv", a=a, b=Const(value=number)) if a == whole and number == size:
                return outer
            case Binary(op="mod", a=a, b=Const(value=number)) if a == whole and number == size:
                return inner
        return expr

    rewriter = ExprRewriter(visit)

    def split(block: ComputeBlock) -> ComputeBlock:
        axes: list[IterVar] = []
        for each in block.axes:
            pieces = (
                replace(each, name=outer.name, extent=dims.floordiv(each.extent, size)),
                replace(each, extent=size),
            )
            axes += pieces if each.name == axis.name else (each,)
        return replace(rewrite_block(block, rewriter), axes=tuple(axes))

    return replace(stage, blocks=tuple(map(split, stage.blocks)))
