"""Loops over steps: kernels are launched for each step, and are told its number."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kernelyard import dims
from kernelyard.plugins.codegen_api import Axis, DimValue, Expr, ExprRewriter, IterVar, Stage, rewrite_block


def at_step(stage: Stage, step: IterVar, symbol: str) -> Stage:
    """Return a stage inside of a loop over steps as one of a single step: its number is a size, of which a kernel is
    told. symbol: is one more than the number, as no symbol is 0.
    """
    number = DimValue(dims.symbol(symbol) - 1)

    def visit(expr: Expr) -> Expr:
        return number if isinstance(expr, Axis) and expr.name == step.name else expr

    rewriter = ExprRewriter(visit)
    blocks = (
        replace(rewrite_block(block, rewriter), axes=tuple(axis for axis in block.axes if axis != step))
        for block in stage.blocks
    )
    return replace(stage, blocks=tuple(blocks))


def create_symbol(wanted: str, taken: Collection[str]) -> str:
    """Return a name that is none of those taken."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
