"""Rematerialization: values along rows are computed again where they are read, rather than written and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelyard.plugins.codegen_api import (
    Buffer,
    ComputeBlock,
    Expr,
    ExprRewriter,
    Load,
    Stage,
    rewrite_block,
    substitute_axes,
)


def rematerialize(stages: Sequence[Stage], private: frozenset[Buffer]) -> tuple[Stage, ...]:
    """Return stages without those that only compute values for the others, one for each point.

    private: buffers that no other stage touches.
    """
    values: dict[Buffer, ComputeBlock] = {}

    def visit(expr: Expr) -> Expr:
        block = values.get(expr.buffer) if isinstance(expr, Load) else None
        if block is None or not isinstance(expr, Load):
            return expr
        axes = (axis.name for axis in block.spatial_axes)
        return substitute_axes(block.body, dict(zip(axes, expr.indices, strict=True)))

    kept: list[Stage] = []
    for stage in stages:
        may_go = not stage.reduce and stage.written <= private and all(map(_is_one_value, stage.blocks))
        blocks: list[ComputeBlock] = []
        for block in stage.blocks:
            blocks.append(rewrite_block(block, ExprRewriter(visit)))
            if may_go:
                values[block.output] = blocks[-1]
        if not may_go:
            kept.append(replace(stage, blocks=tuple(blocks)))
    return tuple(kept)


def _is_one_value(block: ComputeBlock) -> bool:
    return block.writes_spatial_axes and block.output not in block.reads
