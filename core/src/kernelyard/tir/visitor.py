"""Rewriting of scalar expressions and of the blocks that hold them; shared sub-expressions stay shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr, Load
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc

Rewrite = Callable[[Expr], Expr]
Indices: TypeAlias = tuple[Expr, ...]


class ExprRewriter:
    """Rewrites expressions bottom-up: `visit` gets each node with its children already rewritten.

    Each different node is visited once, so the work grows with the size of the shared form, not of the tree.
    """

    def __init__(self, visit: Rewrite) -> None:
        self.visit = visit
        self.done: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        known = self.done.get(expr)
        if known is None:
            known = self.done[expr] = self.visit(self._rewrite_children(expr))
        return known

    def _rewrite_children(self, expr: Expr) -> Expr:
        children = expr.children
        new = tuple(map(self, children))
        changed = any(a is not b for a, b in zip(children, new, strict=True))
        return expr.with_children(new) if changed else expr


def rewrite_block(block: ComputeBlock, rewrite: Rewrite) -> ComputeBlock:
    """Return the block with every expression rewritten."""
    return replace(
        block,
        indices=tuple(map(rewrite, block.indices)),
        body=rewrite(block.body),
        init=None if block.init is None else rewrite(block.init),
        arg=None if block.arg is None else rewrite(block.arg),
    )


def rename_buffers(block: ComputeBlock, new: Mapping[Buffer, Buffer]) -> ComputeBlock:
    """Return the block reading and writing other buffers."""

    def visit(expr: Expr) -> Expr:
        return Load(new.get(expr.buffer, expr.buffer), expr.indices) if isinstance(expr, Load) else expr

    renamed = rewrite_block(block, ExprRewriter(visit))
    return replace(renamed, output=new.get(block.output, block.output))


def replace_inputs(
    function: PrimFunc, new: Mapping[Buffer, Buffer], indices: Callable[[Buffer, Indices], Indices]
) -> PrimFunc:
    """Return the function reading other buffers in place of inputs. indices: of the new one, for those of the old."""

    def visit(expr: Expr) -> Expr:
        if not isinstance(expr, Load) or expr.buffer not in new:
            return expr
        return Load(new[expr.buffer], indices(expr.buffer, expr.indices))

    rewriter = ExprRewriter(visit)
    blocks = tuple(rewrite_block(block, rewriter) for block in function.blocks)
    params = tuple(new.get(buffer, buffer) for buffer in function.params)
    return PrimFunc(params, blocks, function.num_outputs, function.locals, function.attrs)


def substitute_axes(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Return the expression with axes replaced."""
    return ExprRewriter(lambda e: values.get(e.name, e) if isinstance(e, Axis) else e)(expr)
