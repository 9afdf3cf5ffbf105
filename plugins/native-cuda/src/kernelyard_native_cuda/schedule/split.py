"""Splits: where few results are of many elements, parts are reduced first, to keep a GPU busy (split-K of sums)."""

from __future__ import annotations

from dataclasses import replace

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import (
    REDUCE,
    Axis,
    Buffer,
    Declined,
    Expr,
    ExprRewriter,
    IterVar,
    Stage,
    extent_of,
    index,
    rewrite_block,
    step_along,
)
from kernelyard_native_cuda.codegen.operations import REDUCERS
from kernelyard_native_cuda.codegen.types import is_narrow_float
from kernelyard_native_cuda.schedule.contraction import Contraction, contraction_of
from kernelyard_native_cuda.schedule.fallback import THREADS
from kernelyard_native_cuda.schedule.gemv import BLOCKS, blocks_of, product_in
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import tiles_of
from kernelyard_native_cuda.schedule.reduction import EXTREMES

LEAST_DEPTH = 256  # products of a part
MULTIPLE = 64  # that a part's depth is of, so that its elements are aligned as those of the whole
MOST_PARTS = 32
LEAST_PART = 512  # elements of which the place of an extreme is found first
MOST_PARTS_OF_EXTREMES = 64
MOST_PARTS_OF_COLUMNS = 64
LEAST_ROWS = 32  # of a part of columns
COLUMN_BLOCKS = 4  # as BLOCKS of gemv
PART = "part"


Split = tuple[Stage, Stage, Buffer]


def split_stage(stage: Stage, name: str, machine: Machine, is_alone: bool = False) -> Split | None:
    """Return a stage as one that reduces parts and one that reduces what was found, and what is between; None to leave
    it. is_alone: whether no other stage follows, whose rows it might share.
    """
    if stage.first.reducer in EXTREMES:
        return _split_extreme(stage, name, machine)
    split = _split_sum(stage, name, machine)
    return _split_columns(stage, name, machine) if split is None and is_alone else split


# --- places of extremes -----------------------------------------------------------------------------------------------
def _split_extreme(stage: Stage, name: str, machine: Machine) -> Split | None:
    """Find the place in each part; then compare what stands there."""
    if len(stage.reduce) != 1:
        return None
    (axis,), results = stage.reduce, stage.points
    if not isinstance(axis.extent, int) or not isinstance(results, int) or results * 2 > machine.multiprocessors:
        return None
    most = min(MOST_PARTS_OF_EXTREMES, axis.extent // LEAST_PART)
    parts = max((n for n in range(1, most + 1) if axis.extent % n == 0), default=1)
    if parts == 1:
        return None
    block = stage.first
    assert block.arg is not None
    short, place = _part_of(axis, parts)
    rows = tuple(each.axis for each in block.spatial_axes)
    shape = (*(each.extent for each in block.spatial_axes), parts)
    between = Buffer(f"{name}_parts", shape, "int64", "local")
    moved = rewrite_block(block, ExprRewriter(lambda e: place if e == axis.axis else e))
    axes = (*block.spatial_axes, IterVar(PART, parts), short)
    first = replace(moved, axes=axes, output=between, indices=(*rows, Axis(PART)), arg=place)
    last = IterVar(axis.name, parts, REDUCE)
    found = between[(*rows, last.axis)]
    at_found = rewrite_block(block, ExprRewriter(lambda e: found if e == axis.axis else e))
    rest = replace(at_found, axes=(*block.spatial_axes, last))
    return Stage((first,)), replace(stage, blocks=(rest, *stage.blocks[1:])), between


def _part_of(axis: IterVar, parts: int) -> tuple[IterVar, Expr]:
    """Return the axis of a part of an axis, and the place on the whole one."""
    assert isinstance(axis.extent, int)
    short = replace(axis, extent=axis.extent // parts)
    return short, Axis(PART) * index(short.extent) + axis.axis


# --- sums -------------------------------------------------------------------------------------------------------------
def _split_sum(stage: Stage, name: str, machine: Machine) -> Split | None:
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


def _split_columns(stage: Stage, name: str, machine: Machine) -> Split | None:
    """Reduce parts of columns, each by a thread for each column, whose neighbours read neighbours."""
    block = stage.first
    if block.reducer not in REDUCERS or contraction_of(stage) is not None or len(stage.reduce) != 1:
        return None
    (axis,), results = stage.reduce, stage.points
    is_narrow = is_narrow_float(block.output.dtype)  # what is between would be rounded
    if is_narrow or not isinstance(axis.extent, int) or not isinstance(results, int):
        return None
    if any(step_along(load, axis.name) == 1 for load in block.loads):
        return None
    blocks, parts = -(-results // THREADS), 1
    while blocks * parts * 2 <= machine.multiprocessors * COLUMN_BLOCKS and parts < MOST_PARTS_OF_COLUMNS:
        if axis.extent % (parts * 2) or axis.extent < parts * 2 * LEAST_ROWS:
            break
        parts *= 2
    return None if parts == 1 else _split(stage, name, axis, parts)


def _blocks(it: Contraction, machine: Machine) -> tuple[Dim, int]:
    """Return the number of thread blocks, and the number that would keep the GPU busy."""
    product = product_in(it, machine)
    if isinstance(product, Declined):
        return (tiles_of(it, machine), machine.multiprocessors) if it.a.own else (1, 0)
    wanted = machine.multiprocessors * (1 if product.in_tiles else BLOCKS)
    return blocks_of(product, machine), wanted


def _split(stage: Stage, name: str, axis: IterVar, parts: int) -> Split:
    block = stage.first
    short, part = _part_of(axis, parts)
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
