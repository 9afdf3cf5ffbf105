"""Packing of constant matmul operands into blocks, so that a kernel reads them sequentially."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from kernelyard import dims
from kernelyard.plugins.codegen_api import (
    Axis,
    Buffer,
    Packing,
    PrimFunc,
    Stage,
    axes_of,
    pack_inputs,
    paddable_axis,
)
from kernelyard_native_cpu.machine import Machine
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.loops import Loops, loops_of
from kernelyard_native_cpu.schedule.plan import size_of
from kernelyard_native_cpu.schedule.rules import make_plan
from kernelyard_native_cpu.schedule.tiling import MOST_HEIGHT, best_tile, find_reused_axes, tile_cost

# What fits into the first cache is quick to read in any order: so few elements are packed only where vectors along them
# cost a tenth less, as those of 64 filters over 10 samples of a sound do.
_SMALL_ELEMENTS, _LEAST_GAIN = 4096, 0.9
# An axis that no block divides is made longer for a matrix of so many bytes, and for at most so many rows: results of
# more no longer fit into a cache, and the copy without what lies beyond the axis takes longer than what is saved.
_LEAST_PADDED_BYTES = 1 << 16
_MOST_ROWS_PADDED = 4096
_MOST_WASTE = 0.07  # 201 and 257 columns, as of spectra, become 208 and 272
# What is computed in float32: weights, and what they are dequantized from.
_PACKED_DTYPES = ("float32", "bfloat16", "float16", "int8", "int32")


def choose_packings(function: PrimFunc, constants: Collection[int], machine: Machine) -> dict[int, Packing]:
    """Return the packing of each operand along whose own axis vectors are best taken; scales and zero points are cut
    as they are.
    """
    chosen: dict[int, Packing] = {}
    for position in constants:
        buffer = function.inputs[position]
        stage = _stage_that_multiplies(function, buffer)
        if stage is None or buffer.dtype not in _PACKED_DTYPES:
            continue
        constant_buffers = {function.inputs[n] for n in constants}
        packing = _packing(function, position, stage, constant_buffers, machine)
        if packing is not None:
            chosen[position] = packing
    return chosen


def _stage_that_multiplies(function: PrimFunc, buffer: Buffer) -> Stage | None:
    """Return the stage whose contraction reads a buffer, where no other block does."""
    stages = [stage for group in make_groups(function) for stage in group.stages]
    readers = [(stage, block) for stage in stages for block in stage.blocks if buffer in block.reads]
    if len(readers) != 1:
        return None
    ((stage, block),) = readers
    return stage if block is stage.first and block.reducer == "sum" and block.reduce_axes else None


def _packing(
    function: PrimFunc, position: int, stage: Stage, constants: Collection[Buffer], machine: Machine
) -> Packing | None:
    buffer = function.inputs[position]
    for axis, place in _own_axes(stage, buffer, constants):
        is_padded = paddable_axis(function, buffer, place) is not None and _is_worth_padding(stage, axis, buffer)
        blocks = _block_sizes(stage, axis, is_padded, machine)
        packed = {size: _make_packed_loops(function, position, Packing(place, size), machine) for size in blocks}
        usable = {size: loops for size, loops in packed.items() if loops.vector == axis}
        best = min(usable, key=lambda size: _time(usable[size], axis) / size, default=None)
        now = loops_of(stage, frozenset(), {}, machine)
        is_small = size_of(buffer.numel) < _SMALL_ELEMENTS
        if best is None or (is_small and make_plan(stage, frozenset(), {}, machine).panel is not None):
            continue
        if now.vector is None or usable[best].cost(axis) <= (_LEAST_GAIN if is_small else 1.0) * now.cost(now.vector):
            return Packing(place, best)
    return None


def _own_axes(stage: Stage, buffer: Buffer, constants: Collection[Buffer]) -> Iterator[tuple[str, int]]:
    """Spatial axes that stand alone as an index of the buffer and are read by no operand but constants, with that
    index."""
    operands = stage.first.loads
    (load, *others) = [load for load in operands if load.buffer == buffer]
    if others:
        return
    elsewhere = frozenset[str]().union(*(axes_of(each) for each in operands if each.buffer not in constants))
    times_used = Counter(axis for index in load.indices for axis in axes_of(index))
    for place, index in enumerate(load.indices):
        names = {axis.name for axis in stage.spatial} - elsewhere
        if isinstance(index, Axis) and index.name in names and times_used[index.name] == 1:
            yield index.name, place


def _is_worth_padding(stage: Stage, axis: str, matrix: Buffer) -> bool:
    """Return True for a large matrix, whose rows are far apart, unless very many rows meet it."""
    rows = dims.product(each.extent for each in stage.spatial if each.name != axis)
    return size_of(rows) <= _MOST_ROWS_PADDED and size_of(matrix.nbytes) >= _LEAST_PADDED_BYTES


def _block_sizes(stage: Stage, axis: str, is_padded: bool, machine: Machine) -> list[int]:
    """Whole vectors, up to the widest tile, of which the axis is a multiple, or may be made one at little cost."""
    (extent,) = (each.extent for each in stage.spatial if each.name == axis)
    lanes = machine.vector_bits // 32
    sizes = [lanes * width for width in MOST_HEIGHT[machine.vector_registers]]
    most = _MOST_WASTE if is_padded else 0.0
    return [size for size in sizes if isinstance(extent, int) and -extent % size <= most * extent]


def _make_packed_loops(function: PrimFunc, position: int, packing: Packing, machine: Machine) -> Loops:
    packed = pack_inputs(function, {position: packing})
    stage = _stage_that_multiplies(packed, packed.inputs[position])
    assert stage is not None
    return loops_of(stage, frozenset(), {}, machine)


def _time(loops: Loops, axis: str) -> float:
    """Of the tiles that cover one block."""
    rows = find_reused_axes(loops, axis)
    count = size_of(loops.extents[rows[0]]) if rows else 1
    tile = best_tile(count, loops.vectors(axis), loops.machine.vector_registers)
    return tile_cost(count, loops.vectors(axis), *tile)
