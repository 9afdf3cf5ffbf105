"""Back-to-back matmuls: fuse two matmuls and the row-wise operators between them under one parallel loop.

In attention, queries are multiplied by keys, softmax is applied to each row, and the rows are multiplied by values. The
rows are tiled, so that the intermediate results of a tile fit into the second-level cache and never go to memory.
(Source of the term: CUTLASS, back-to-back GEMM fusion.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.api import Call
from kernelyard.plugins.codegen_api import (
    Axis,
    Buffer,
    ComputeBlock,
    Expr,
    ExprRewriter,
    IterVar,
    Load,
    Stage,
    extents_of,
    rewrite_block,
)
from kernelyard_native_cpu.schedule.group import Group

# Bytes of the intermediate results of one tile of rows: a part of the second-level cache, which has to hold rows of the
# second matmul's other operand, too.
_BYTES = 256 << 10
_MOST_ROWS, _LEAST_ROWS = 96, 16
_MOST_BYTES_OF_ROW = 64 << 10
# At least so many tiles, so that several threads have work if there are few heads, as long as each has _LEAST_ROWS.
_LEAST_BLOCKS = 4
_DTYPE = "float32"


def back_to_back_group(stages: Sequence[Stage], locals_: frozenset[Buffer]) -> Group | None:
    """Return the group of the first stages if they are a contraction, row-wise stages, and a contraction of these rows.

    None for any other stages. locals_: buffers that are no outputs of the function.
    """
    members = _between_contractions(stages)
    between = {buffer for stage in members[:-1] for buffer in stage.outputs}
    read_later = {buffer for stage in stages[len(members) :] for block in stage.blocks for buffer in block.reads}
    if not members or between - locals_ or between & read_later:
        return None
    shared = len(members[1].spatial) if members[1].reduce else 0
    final = _with_rows_first(members[-1], between, shared) if shared else None
    if final is None or not _share_rows((*members[:-1], final), between, shared):
        return None
    return _split_rows((*members[:-1], final), between, shared)


def _between_contractions(stages: Sequence[Stage]) -> Sequence[Stage]:
    """Return the stages from the first one, a contraction, to the next contraction; none if they are adjacent."""
    last = next((n for n, stage in enumerate(stages) if n and stage.is_contraction), 0)
    members = stages[: last + 1]
    if last < 2 or not members[0].is_contraction:
        return ()
    is_in_order = any(stage.is_ordered or stage.step or stage.reads_itself for stage in members)
    return () if is_in_order else members


def _with_rows_first(stage: Stage, between: set[Buffer], shared: int) -> Stage | None:
    """Return the stage with axes named and ordered as the rows that it reads are; None where these are no axes."""
    row = next((load.indices[:shared] for load in stage.first.loads if load.buffer in between), ())
    names = [index.name for index in row if isinstance(index, Axis)]
    spatial = [axis.name for axis in stage.spatial]
    if len(set(names)) != shared or not set(names) <= set(spatial):
        return None
    ordered = [*names, *(name for name in spatial if name not in names)]
    return _rename_axes(stage, {name: f"s{n}" for n, name in enumerate(ordered)})


def _rename_axes(stage: Stage, names: Mapping[str, str]) -> Stage:
    rewriter = ExprRewriter(lambda e: Axis(names[e.name]) if isinstance(e, Axis) and e.name in names else e)

    def rename(block: ComputeBlock) -> ComputeBlock:
        axes = [replace(axis, name=names.get(axis.name, axis.name)) for axis in block.axes]
        axes.sort(key=lambda axis: (axis.name not in names.values(), axis.name))
        return replace(rewrite_block(block, rewriter), axes=tuple(axes))

    return replace(stage, blocks=tuple(map(rename, stage.blocks)))


def _share_rows(stages: Sequence[Stage], between: set[Buffer], shared: int) -> bool:
    """Return True where all stages run over the same rows, long enough and known, and none needs another's."""
    if any(extents_of(a.spatial[:shared]) != extents_of(b.spatial[:shared]) for a, b in pairwise(stages)):
        return False
    if len(stages[0].spatial) != shared + 1 or len(stages[-1].spatial) != shared + 1:
        return False
    axis = stages[0].spatial[shared - 1]
    if isinstance(axis.extent, int) and axis.extent < _LEAST_ROWS:
        return False
    row = tuple(Axis(f"s{n}") for n in range(shared))
    written = (block.indices for stage in stages[:-1] for block in stage.blocks)
    read = (load.indices for stage in stages for load in stage.loads if load.buffer in between)
    return all(indices[:shared] == row for indices in (*written, *read))


def _split_rows(stages: Sequence[Stage], between: set[Buffer], shared: int) -> Group | None:
    """Tile the last shared axis; the intermediate buffers hold the rows of one tile."""
    *outer, axis = stages[0].spatial[:shared]
    height = _height(axis, outer, between)
    if height is None:
        return None
    start = Axis(f"{axis.name}b")
    kept = {b: Buffer(b.name, (height, *b.shape[shared:]), b.dtype, b.scope) for b in between}

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Axis) and expr.name == axis.name:
            return start + expr
        return expr

    rewriter = ExprRewriter(visit)

    def load(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in kept:
            return Load(kept[expr.buffer], (Axis(axis.name), *expr.indices[shared:]))
        return expr

    loads = ExprRewriter(load)

    def split(block: ComputeBlock) -> ComputeBlock:
        axes: list[IterVar] = []
        for each in block.axes:
            count = dims.ceildiv(each.extent, height)
            parts = (replace(each, name=start.name, extent=count), replace(each, extent=height))
            axes += parts if each.name == axis.name else (each,)
        changed = replace(rewrite_block(rewrite_block(block, rewriter), loads), axes=tuple(axes))
        if block.output not in kept:
            return changed
        return replace(changed, output=kept[block.output], indices=(Axis(axis.name), *changed.indices[shared:]))

    members = tuple(
        replace(
            stage,
            blocks=tuple(map(split, stage.blocks)),
            inside=frozenset(kept.get(buffer, buffer) for buffer in stage.inside),
        )
        for stage in stages
    )
    in_memory = frozenset(kept.values()).difference(*(stage.inside for stage in members))
    return Group(members, shared, in_memory, axis.extent, height)


def should_tile_attention(attention: Call) -> bool:
    """Return True for an attention with so many scores that tiling its rows saves memory traffic."""
    queries, keys = (operand.tensor_type for operand in attention.args[:2])
    rows, columns = queries.shape[1], keys.shape[1]
    most = _MOST_BYTES_OF_ROW // dtypes.itemsize(_DTYPE)
    are_many = all(not isinstance(each, int) or each >= _LEAST_ROWS for each in (rows, columns))
    return queries.dtype == _DTYPE and are_many and (not isinstance(columns, int) or columns <= most)


def _height(axis: IterVar, outer: Sequence[IterVar], between: set[Buffer]) -> Dim | None:
    """Return the number of rows in a tile; None if even the fewest rows would not fit.

    So many tiles are taken as fit the cache and give several threads work, all equally high; the last one is shifted
    back to end with the rows. outer: the axes around the rows, batch and head.
    """
    shared = len(outer) + 1
    lengths = {Buffer(buffer.name, buffer.shape[shared:], buffer.dtype).nbytes for buffer in between}
    known = max((length for length in lengths if isinstance(length, int)), default=1)
    if known > _MOST_BYTES_OF_ROW:
        return None
    length = reduce(dims.maximum, [length for length in lengths if not isinstance(length, int)], known)
    rows, most = axis.extent, dims.maximum(_LEAST_ROWS, dims.minimum(_MOST_ROWS, dims.floordiv(_BYTES, length)))
    heads = dims.product(each.extent if isinstance(each.extent, int) else _LEAST_BLOCKS for each in outer)
    evenly = dims.maximum(_LEAST_ROWS, dims.ceildiv(rows * heads, _LEAST_BLOCKS))
    tiles = dims.ceildiv(rows, dims.minimum(most, evenly))
    return dims.ceildiv(rows, dims.maximum(1, tiles))
