"""Sort rule: rows sorted as a whole, or, where few of their elements are wanted, read once and selected from."""

from __future__ import annotations

from dataclasses import replace

from kernelyard import dims
from kernelyard.plugins.codegen_api import (
    Buffer,
    Const,
    Declined,
    Expr,
    ExprRewriter,
    Load,
    Stage,
    position_axis,
    positions_used,
    sorts,
    substitute_axes,
    walk,
)
from kernelyard_native_cpu.schedule.loops import Loops
from kernelyard_native_cpu.schedule.plan import Plan, Sort
from kernelyard_native_cpu.schedule.record_layout import RecordLayout

# Of a long row, the first so many times the wanted records, and some more, are sorted at once. Then the wanted ones are
# found anew whenever there are so many times as many: the more, the less is sorted in all, but the more memory is used.
_FILL, _ROOM = 2, 4
_SPARE = 128
# What a vector may write beyond the last record, and read.
_MARGIN = 64


def sort(loops: Loops) -> Plan | Declined:
    """Sort row by row, each in thread-local memory."""
    block = loops.stage.first
    if not sorts(block):
        return Declined("the stage does not sort")
    position = position_axis(block)
    (row,) = loops.reduce
    length, wanted = loops.extents[row], positions_used(block)
    fill, room = (dims.minimum(length, times * wanted + _SPARE) for times in (_FILL, _ROOM))
    bits, compression = loops.machine.vector_bits, loops.machine.compression
    value = _value_alone(loops.stage) if compression else None
    layout = RecordLayout(block.body.dtype, has_places=value is None)
    capacity = room + _MARGIN
    records = Buffer(f"records of {block.name}", (2, layout.words, capacity), f"int{layout.word_bits}", "local")
    counters = Buffer(f"digits of {block.name}", (layout.counters,), "int64", "local")
    found = Sort(
        layout,
        value,
        position.name if position else None,
        wanted,
        lanes=bits // (32 * layout.words),
        result_lanes=bits // 64,
        compression=compression,
        fill=fill,
        room=room,
        is_whole=fill == length,
        records=records,
        counters=counters,
    )
    outer = tuple(name for name in loops.spatial if position is None or name != position.name)
    return replace(loops.scalar(), spatial=outer, sort=found)


def _value_alone(stage: Stage) -> Expr | None:
    """Return the element at a sorted place, where nothing else is asked of the place, here or later."""
    block = stage.first
    place = Load(block.output, block.indices)
    (row,) = block.reduce_axes
    value = substitute_axes(block.body, {row.name: place})
    if block.output not in stage.inside or value == block.body:
        return None
    without = ExprRewriter(lambda e: Const(0, e.dtype) if e == value else e)
    bodies = [without(each.body) for each in stage.blocks[1:]]
    return None if place in walk(*bodies) else value
