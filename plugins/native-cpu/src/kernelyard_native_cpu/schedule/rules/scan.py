"""Scan rule: running sums and products, carried in registers; lanes lie along the scanned axis, or another one."""

from __future__ import annotations

from dataclasses import replace

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    ComputeBlock,
    Const,
    Declined,
    Load,
    Select,
    offset_of,
    substitute_axes,
)
from kernelyard_native_cpu.schedule.loops import Loops, even_parts
from kernelyard_native_cpu.schedule.plan import Plan, Scan

_OPERATIONS = ("add", "mul", "min", "max")
# Vectors of another axis that are scanned side by side, their totals in registers.
_UNROLL = 4
# Vectors whose totals, and items, a cache of the first level holds: memory is read and written row after row.
_ROW = 128


def scan(loops: Loops) -> Plan | Declined:
    """Each total is the one before it and an item, which the block says."""
    found = _recurrence(loops.stage.first) if loops.stage.is_ordered and len(loops.reduce) == 1 else None
    if found is None:
        return Declined("the stage is no scan in which each element is the one before it combined with an item")
    lanes = loops.full_lanes
    if _lies_along(loops, loops.reduce[0], (1, -1)) and _is_associative(found, loops.stage.first):
        return replace(loops.scalar(), scan=replace(found, lanes=lanes))
    across = next((name for name in reversed(loops.spatial) if _lies_along(loops, name, (0, 1))), None)
    if across is None or loops.lanes(across) < 2:
        return replace(loops.scalar(), scan=found)
    vectors = loops.vectors(across)
    plan = replace(loops.scalar(), vector=across, lanes=loops.lanes(across), masked=loops.is_masked(across))
    if vectors <= _UNROLL:
        return replace(plan, unroll=even_parts(vectors, _UNROLL), scan=found)
    return replace(plan, scan=replace(found, row=even_parts(vectors, _ROW)))


def _recurrence(block: ComputeBlock) -> Scan | None:
    """Return what a block of the form `k < 1 ? first : before + item` is made of."""
    (axis,) = block.reduce_axes
    match block.body:
        case Select(
            condition=Binary(op="lt", a=Axis(name=axis.name), b=Const(value=1)),
            a=first,
            b=Binary(op=op, a=Load() as before, b=item),
        ) if op in _OPERATIONS and _is_before(block, before, axis.name):
            return Scan(axis.name, op, first, item)
    return None


def _is_before(block: ComputeBlock, load: Load, axis: str) -> bool:
    """Return True for the element that the step before has written, where nothing else of the output is read."""
    if load.buffer != block.output or sum(each.buffer == block.output for each in block.loads) > 1:
        return False
    earlier = tuple(substitute_axes(e, {axis: Axis(axis) - 1}) for e in block.indices)
    written = offset_of(block.output, earlier)
    return offset_of(load.buffer, load.indices).plus(written, -1) == written.plus(written, -1)


def _is_associative(found: Scan, block: ComputeBlock) -> bool:
    """Return False for products of floats: those of neighbours may leave the range that the running one stays in."""
    return found.op != "mul" or not dtypes.is_float(block.body.dtype)


def _lies_along(loops: Loops, axis: str, steps: tuple[int, ...]) -> bool:
    return all(access.offset.coefficient(axis) in steps for access in loops.accesses)
