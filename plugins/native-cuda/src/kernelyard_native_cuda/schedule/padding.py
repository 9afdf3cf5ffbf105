"""Padding: a local that is a tensor with a constant around it is not stored; its readers ask where they are.

Where that tensor is not cheap to compute again, it is stored, without the constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    Buffer,
    Cast,
    ComputeBlock,
    Const,
    DimValue,
    Expr,
    ExprRewriter,
    IndexAlgebra,
    Load,
    PrimFunc,
    Select,
    cost,
    extents_of,
    index,
    rewrite_block,
    simplify_block,
    substitute_axes,
)
from kernelyard_native_cuda.schedule.contraction import narrow_expr

CHEAP = 4  # operations that may be repeated rather than stored


@dataclass(frozen=True)
class Piece:
    """A block that writes elements from `start` on, along every dimension."""

    block: ComputeBlock
    start: tuple[Dim, ...]

    @property
    def end(self) -> tuple[Dim, ...]:
        """Behind the last element, along every dimension."""
        return tuple(at + axis.extent for at, axis in zip(self.start, self.block.axes, strict=True))


def inline_padding(function: PrimFunc) -> PrimFunc:
    """Return the function without the locals that are a tensor with a constant around it."""
    for buffer in function.locals:
        writers = [block for block in function.blocks if block.output == buffer]
        found = _match_padding(writers) if len(writers) > 1 else None
        if found is None or any(buffer in block.reads for block in writers):
            continue
        function = _remove_local(function, buffer, *found)
    return function


def _remove_local(function: PrimFunc, buffer: Buffer, piece: Piece, value: Const) -> PrimFunc:
    """Return the function without a local that is a piece with a constant around it."""
    blocks = [block for block in function.blocks if block.output != buffer or block == piece.block]
    rest = [each for each in function.locals if each != buffer]
    place = blocks.index(piece.block)
    if cost(piece.block.body) > CHEAP:
        blocks[place], piece = _store_piece(piece)
        rest.append(blocks[place].output)
    else:
        del blocks[place]
    rewritten = tuple(_rewrite(block, buffer, piece, value) for block in blocks)
    return PrimFunc(function.params, rewritten, function.num_outputs, tuple(rest), function.attrs)


def _match_padding(writers: Sequence[ComputeBlock]) -> tuple[Piece, Const] | None:
    """Return the piece inside, and the constant of all others; None where it is not so."""
    pieces = [piece for block in writers if (piece := _piece_of(block)) is not None]
    inner = [piece for piece in pieces if not isinstance(piece.block.body, Const)]
    values = {piece.block.body for piece in pieces if piece not in inner}
    if len(pieces) < len(writers) or len(inner) != 1 or len(values) != 1:
        return None
    (value,) = values
    apart = all(_are_apart(piece, inner[0]) for piece in pieces if piece not in inner)
    return (inner[0], value) if apart and isinstance(value, Const) else None


def _store_piece(piece: Piece) -> tuple[ComputeBlock, Piece]:
    """Return a block that stores a piece alone, in as few bits as hold it, and the piece as it is read from there."""
    block, narrow = piece.block, narrow_expr(piece.block.body)
    at = tuple(axis.axis for axis in block.axes)
    buffer = Buffer(f"{block.output.name}_inside", extents_of(block.axes), narrow.dtype, "local")
    element = buffer[at] if narrow.dtype == block.output.dtype else Cast(buffer[at], block.output.dtype)
    stored = replace(block, output=buffer, indices=at, body=narrow)
    return stored, Piece(replace(block, body=element), piece.start)


def _piece_of(block: ComputeBlock) -> Piece | None:
    if block.reducer is not None or block.reduce_axes or len(block.indices) != len(block.axes):
        return None
    starts = [_start(at, axis.axis) for at, axis in zip(block.indices, block.axes, strict=True)]
    known = tuple(start for start in starts if start is not None)
    return Piece(block, known) if len(known) == len(starts) else None


def _start(at: Expr, axis: Axis) -> Dim | None:
    """Return the offset that an index adds to an axis; None if the index has another form."""
    if at == axis:
        return 0
    if isinstance(at, Binary) and at.op == "add" and at.a == axis:
        match at.b:
            case Const(value=int() as value):
                return value
            case DimValue(dim=dim):
                return dim
    return None


def _are_apart(one: Piece, other: Piece) -> bool:
    is_known = IndexAlgebra({}).is_nonnegative
    sides = zip(one.start, one.end, other.start, other.end, strict=True)
    return any(is_known(start_b - end_a) or is_known(start_a - end_b) for start_a, end_a, start_b, end_b in sides)


def _rewrite(block: ComputeBlock, buffer: Buffer, inner: Piece, value: Const) -> ComputeBlock:
    if buffer not in block.reads:
        return block

    def visit(expr: Expr) -> Expr:
        if not isinstance(expr, Load) or expr.buffer != buffer:
            return expr
        places = [at - index(start) for at, start in zip(expr.indices, inner.start, strict=True)]
        axes = inner.block.axes
        body = substitute_axes(inner.block.body, {a.name: at for a, at in zip(axes, places, strict=True)})
        limits = list(zip(places, axes, buffer.shape, strict=True))
        conditions = [c for at, axis, size in limits if axis.extent != size for c in (at >= 0, at < index(axis.extent))]
        return Select(reduce(lambda a, b: a & b, conditions), body, value) if conditions else body

    return simplify_block(rewrite_block(block, ExprRewriter(visit)))
