"""Matmul with quantized weights: dequantized in registers, or once for all tiles where there are many rows."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce as fold

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import (
    Binary,
    Buffer,
    Declined,
    Expr,
    Load,
    axes_of,
    offset_of,
    used_as_values,
    walk,
)
from kernelyard_native_cpu.schedule.loops import Loops, even_parts
from kernelyard_native_cpu.schedule.plan import Factored, Panel, Plan, Shift, Stream, size_of
from kernelyard_native_cpu.schedule.tiling import best_tile

# The prefetch distance of stored integers, in steps of the last axis that is not unrolled.
_STEPS_AHEAD = 48
_CACHE_LINE = 64
_MOST_UNROLLED = 8
# With more rows in a tile, dequantizing is a small part of the work, and registers are short.
_MOST_FACTORED_ROWS = 4
# With more, the sums that zero points are multiplied by cost more than what they save.
_MOST_SHIFTED_ROWS = 2
# Sums of a tile: as many registers are left for what is dequantized, and for sums along the inner axes.
_MOST_SUMS = {32: 16, 16: 6}
_WIDEST = 4


def dequantize_matmul(loops: Loops) -> Plan | Declined:
    """For contractions over groups that share a scale, and over packed integers."""
    if loops.in_order or len(loops.reduce) < 2 or loops.stage.first.reducer != "sum":
        return Declined("the stage is not a sum over quantization groups, or over values packed in a word")
    stored = _stored(loops)
    vector = _axis_along(loops, stored) if stored else None
    if stored is None or vector is None or loops.is_masked(vector) or not isinstance(loops.extents[vector], int):
        return Declined("no operand has contiguous integers along an axis of known size")
    unrolled_axes = _unrolled_axes(loops, stored)
    if len(unrolled_axes) == len(loops.reduce):
        return Declined("every reduced axis is unrolled, and none is left to walk")
    factored = _factored(loops)
    weight = _weight(loops, vector)
    if weight is None or not (unrolled_axes or factored):
        return Declined("neither values packed in a word nor a scale shared by a group")
    stream = _stream(loops, stored, unrolled_axes)
    plan = replace(loops.scalar(), vector=vector, lanes=loops.lanes(vector), unrolled_axes=unrolled_axes, stream=stream)
    return _tiled(loops, plan, vector, weight, factored)


def _tiled(loops: Loops, plan: Plan, vector: str, weight: Expr, factored: Factored | None) -> Plan:
    """Return the plan with tiles of as many rows as there are; more than registers hold share dequantized weights."""
    axis = next((name for name in reversed(loops.others(vector)) if name not in axes_of(weight)), None)
    rows = size_of(loops.extents[axis]) if axis else 1
    most = _MOST_SUMS[loops.machine.vector_registers]

    def on_the_way(height: int) -> Plan:
        is_factored = factored is not None and height <= _MOST_FACTORED_ROWS
        widest = most // height // (2 if is_factored else 1)
        width = even_parts(loops.vectors(vector), max(1, min(_WIDEST, widest)))
        tiles = ((axis, height),) if axis else ()
        split = factored if is_factored else None
        if split is not None and height <= _MOST_SHIFTED_ROWS:
            split = _shifted(split, loops)
        return replace(plan, tiles=tiles, unroll=width, factored=split)

    if axis is None or rows <= most:
        return on_the_way(rows)
    height, width = best_tile(rows, loops.vectors(vector), loops.machine.vector_registers)
    panel = _panel(loops, weight, plan.lanes * width)
    once = replace(plan, tiles=((axis, height),), unroll=width, stream=None, panel=panel)
    if isinstance(loops.extents[axis], int):
        return once
    few = replace(on_the_way(_MOST_FACTORED_ROWS), least_rows=_MOST_FACTORED_ROWS)
    return replace(once, least_rows=most + 1, for_fewer_rows=(few, on_the_way(1)))


def _stored(loops: Loops) -> Load | None:
    """Return the largest operand of integers."""
    integers = [load for load in loops.stage.first.loads if not dtypes.is_float(load.dtype)]
    return max(integers, key=lambda load: size_of(load.buffer.numel), default=None)


def _axis_along(loops: Loops, stored: Load) -> str | None:
    """Return the axis along which stored integers are contiguous."""
    offset = offset_of(stored.buffer, stored.indices)
    return next((name for name in loops.spatial if offset.coefficient(name) == 1), None)


def _unrolled_axes(loops: Loops, stored: Load) -> tuple[str, ...]:
    """Short reduced axes over packed integers: their values are literals then. Where the other operand is padded, its
    condition counts along the axes of groups and words, too, which are walked."""
    values = used_as_values([factor for factor in _factors(loops.stage.first.body) if stored in walk(factor)])
    short = ((name, loops.extents[name]) for name in loops.reduce if name in values)
    return tuple(name for name, extent in short if isinstance(extent, int) and extent <= _MOST_UNROLLED)


def _factors(expr: Expr) -> list[Expr]:
    """Return the factors of a product."""
    if isinstance(expr, Binary) and expr.op == "mul":
        return [*_factors(expr.a), *_factors(expr.b)]
    return [expr]


def _product(factors: list[Expr]) -> Expr:
    return fold(lambda a, b: Binary("mul", a, b), factors)


def _factored(loops: Loops) -> Factored | None:
    """Factor out what is invariant along all reduced axes but the first."""
    inner = set(loops.reduce[1:])
    factors = _factors(loops.stage.first.body)
    outside = [factor for factor in factors if not axes_of(factor) & inner]
    inside = [factor for factor in factors if axes_of(factor) & inner]
    is_float = dtypes.is_float(loops.stage.first.body.dtype)
    return Factored(_product(outside), _product(inside)) if outside and inside and is_float else None


def _shifted(factored: Factored, loops: Loops) -> Factored:
    """Take a zero point, which is invariant along the inner axes, out of the factor that it is subtracted from."""
    inner, rest = set(loops.reduce[1:]), _factors(factored.rest)
    for number, each in enumerate(rest):
        if isinstance(each, Binary) and each.op == "sub" and axes_of(each.b) and not axes_of(each.b) & inner:
            times = _product([*rest[:number], *rest[number + 1 :]]) if len(rest) > 1 else None
            if times is not None and not axes_of(times) & (axes_of(each.b) - set(loops.reduce)):
                return replace(factored, rest=Binary("mul", times, each.a), shift=Shift(each.b, times))
    return factored


def _weight(loops: Loops, vector: str) -> Expr | None:
    """Return the side of the product that runs along the vectors."""
    body = loops.stage.first.body
    if not isinstance(body, Binary) or body.op != "mul":
        return None
    sides = [side for side in (body.a, body.b) if vector in axes_of(side)]
    return sides[0] if len(sides) == 1 and not isinstance(sides[0], Load) else None


def _panel(loops: Loops, weight: Expr, width: int) -> Panel:
    shape = (*(loops.extents[name] for name in loops.reduce), width)
    return Panel(weight, Buffer(f"panel of {loops.stage.first.name}", shape, weight.dtype, "local"))


def _stream(loops: Loops, stored: Load, unrolled_axes: tuple[str, ...]) -> Stream:
    """Return the stored integers, prefetched."""
    axis = [name for name in loops.reduce if name not in unrolled_axes][-1]
    step = offset_of(stored.buffer, stored.indices).coefficient(axis)
    is_aligned = isinstance(step, int) and step * dtypes.itemsize(stored.dtype) % _CACHE_LINE == 0
    return Stream(stored, axis, _STEPS_AHEAD, is_aligned)
