"""Split sums: where few results have long sums, parts of them are made first, to keep a GPU busy (split-K)."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    REDUCE,
    Axis,
    Buffer,
    Declined,
    ExprRewriter,
    IterVar,
    Stage,
    extent_of,
    index,
    rewrite_block,
)
from kernelyard_native_cuda.schedule.contraction import Contraction, contraction_of
from kernelyard_native_cuda.schedule.gemv import blocks_of, product_in
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import tiles_of

LEAST_DEPTH = 256  # products of a part
MULTIPLE = 64  # that a part's depth is of, so that its elements are aligned as those of the whole
MOST_PARTS = 32
GEMV_BLOCKS = 4  # that a multiprocessor needs to read as fast as memory gives
PART = "part"


def split_sum(stage: Stage, name: str, machine: Machine) -> tuple[Stage, Stage, Buffer] | None:
    """Return a stage as one that makes parts of its sums and one that adds them up, and what is between; None to leave
    it.
    """
    it = contraction_of(stage)
    if it is None or not it.reduce:
        return None
    results = extent_of(stage.spatial)
    axis = max(it.reduce, key=lambda axis: axis.extent if isinstance(axis.extent, int) else 0)
    blocks, wanted = _blocks(it, machine)
    if not all(isinstance(size, int) for size in (blocks, results, it.depth, axis.extent)):
        return None
    assert isinstance(blocks, int)
    assert isinstance(it.depth, int)
    assert isinstance(axis.extent, int)
    parts = 1
    while blocks * parts * 2 <= wanted and parts < MOST_PARTS:
        if axis.extent % (parts * 2 * MULTIPLE) or it.depth < parts * 2 * LEAST_DEPTH:
            break
        parts *= 2
    return None if parts == 1 else _split(stage, name, axis, parts)


def _blocks(it: Contraction, machine: Machine) -> tuple[Dim, int]:
    """Return the number of thread blocks, and the number that would keep the GPU busy."""
    product = product_in(it)
    if isinstance(product, Declined):
        return (tiles_of(it, machine), machine.multiprocessors) if it.a.own else (1, 0)
    return blocks_of(product, machine), machine.multiprocessors * GEMV_BLOCKS


def _split(stage: Stage, name: str, axis: IterVar, parts: int) -> tuple[Stage, Stage, Buffer]:
    block = stage.first
    assert isinstance(axis.extent, int)
    short = replace(axis, extent=axis.extent // parts)
    part = Axis(PART) * index(short.extent) + axis.axis
    moved = rewrite_block(block, ExprRewriter(lambda e: part if e == axis.axis else e))
    extents = tuple(each.extent for each in block.spatial_axes)
    places = tuple(each.axis for each in block.spatial_axes)
    between = Buffer(f"{name}_parts", (parts, *extents), block.output.dtype, "local")
    first = replace(
        moved,
        axes=(IterVar(PART, parts), *(short if each == axis else each for each in block.axes)),
        output=between,
        indices=(Axis(PART), *places),
        init=None,
    )
    rest = replace(
        block,
        axes=(*block.spatial_axes, IterVar("r0", parts, REDUCE)),
        body=between[(Axis("r0"), *places)],
    )
    return Stage((first,)), replace(stage, blocks=(rest, *stage.blocks[1:])), between
