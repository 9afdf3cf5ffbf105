"""Groups: an axis of which one operand uses only the quotient by a group size is split into groups and members.

Grouped convolutions and attention with fewer heads of keys than of queries are contractions of a batch of groups then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernelyard import dims
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    ComputeBlock,
    Const,
    Expr,
    ExprRewriter,
    IterVar,
    Simplifier,
    Stage,
    index,
    rewrite_block,
    walk,
)
from kernelyard_native_cuda.schedule.contraction import contraction_of


def with_groups(stage: Stage) -> Stage:
    """Return the stage over groups and members, where it is a contraction of two operands with rows only then."""
    it = contraction_of(stage)
    if it is None or (it.a.own and it.b.own):
        return stage
    for axis, members in _find_divided_axes(stage.first):
        apart = _split_axis(stage, axis, members)
        made = contraction_of(apart)
        if made is not None and made.a.own and made.b.own:
            return apart
    return stage


def _find_divided_axes(block: ComputeBlock) -> Iterator[tuple[IterVar, int]]:
    """Yield axes with the constant by which an index divides them."""
    axes = {axis.name: axis for axis in block.spatial_axes}
    for expr in walk(block.body):
        match expr:
            case Binary(op="floordiv", a=Axis(name=name), b=Const(value=int() as members)) if name in axes:
                extent = axes[name].extent
                if dims.floordiv(extent, members) * members == extent:
                    yield axes[name], members


def _split_axis(stage: Stage, axis: IterVar, members: int) -> Stage:
    group = IterVar(f"{axis.name}_group", dims.floordiv(axis.extent, members))
    member = IterVar(f"{axis.name}_member", members)
    place = group.axis * index(members) + member.axis

    def visit(expr: Expr) -> Expr:
        return place if expr == axis.axis else expr

    def rewrite(block: ComputeBlock) -> ComputeBlock:
        axes = tuple(new for each in block.axes for new in ((group, member) if each == axis else (each,)))
        simplify = Simplifier({each.name: each.extent for each in axes})
        return replace(rewrite_block(rewrite_block(block, ExprRewriter(visit)), simplify), axes=axes)

    return replace(stage, blocks=tuple(map(rewrite, stage.blocks)))
