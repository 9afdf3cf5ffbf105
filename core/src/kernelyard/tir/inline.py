"""Inlining: a local buffer that is cheaper to compute where it is read is computed there."""

from __future__ import annotations

from collections import defaultdict

from kernelyard.dims import Dim
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Expr, Load
from kernelyard.tir.index_algebra import IndexAlgebra
from kernelyard.tir.iterate import Iterate
from kernelyard.tir.op_pattern import cost
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc, walk
from kernelyard.tir.simplify import simplify_block
from kernelyard.tir.sorting import work_of
from kernelyard.tir.visitor import ExprRewriter, rewrite_block, substitute_axes

CHEAP = 4  # operations that may be repeated rather than stored
MAX_SIZE = 2000  # nodes of one body, shared ones counted at each use
MAX_DEPTH = 100  # nodes on the longest way down a body


def inline_locals(function: PrimFunc) -> PrimFunc:
    """Return the function without the local buffers that are not worth storing.

    One is inlined when no element would be computed more often than now, or when its elements are cheap.
    """
    blocks = list(function.blocks)
    readers: dict[Buffer, set[int]] = defaultdict(set)
    for position, block in enumerate(blocks):
        for buffer in block.reads:
            readers[buffer].add(position)
    removed: set[Buffer] = set()
    # From the last to the first: a buffer that many read may be read by one block once these are put together.
    for position in reversed(range(len(blocks))):
        block = blocks[position]
        if block.output.scope != "local" or not _is_inlinable(block, position, blocks):
            continue
        users = _inline(block, {user: blocks[user] for user in readers[block.output]})
        if users is None:
            continue
        removed.add(block.output)
        for user, new in users.items():
            blocks[user] = new
        for buffer in block.reads:
            readers[buffer] = (readers[buffer] - {position}) | set(users)
    kept = tuple(block for block in blocks if block.output not in removed)
    locals_ = tuple(buffer for buffer in function.locals if buffer not in removed)
    return PrimFunc(function.params, kept, function.num_outputs, locals_, function.attrs)


def _is_inlinable(block: ComputeBlock, position: int, blocks: list[ComputeBlock]) -> bool:
    """Return True when every element is one expression that later blocks may compute themselves."""
    if block.reducer is not None or block.reduce_axes or block.step_axis or not block.writes_spatial_axes:
        return False
    if block.output in block.reads or sum(other.output == block.output for other in blocks) > 1:
        return False
    # A loop inside of an element runs along other lanes than what sums up its results.
    if any(isinstance(expr, Iterate) for expr in walk(block.body)):
        return False
    return not any(other.output in block.reads for other in blocks[position + 1 :])


def _inline(block: ComputeBlock, users: dict[int, ComputeBlock]) -> dict[int, ComputeBlock] | None:
    """Return the users without the block's buffer; None where storing it is better."""
    work: Dim = 0
    for user in users.values():
        reads = sum(load.buffer == block.output for load in user.loads)
        work = work + reads * work_of(user)
    repeats = not IndexAlgebra({}).is_nonnegative(block.output.numel - work)
    if repeats and cost(block.body) > CHEAP:
        return None
    inlined = {position: _inline_into(user, block) for position, user in users.items()}
    too_large = any(user.body.size > MAX_SIZE or user.body.depth > MAX_DEPTH for user in inlined.values())
    return None if too_large else inlined


def _inline_into(user: ComputeBlock, block: ComputeBlock) -> ComputeBlock:
    names = [axis.name for axis in block.axes]

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer == block.output:
            return substitute_axes(block.body, dict(zip(names, expr.indices, strict=True)))
        return expr

    return simplify_block(rewrite_block(user, ExprRewriter(visit)))
