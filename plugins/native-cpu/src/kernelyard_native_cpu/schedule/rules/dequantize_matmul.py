"""Matmul with quantized weights: dequantized in registers, or once for all tiles where there are many rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from functools import reduce as fold

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import (
    Binary,
    Buffer,
    Declined,
    Expr,
    Load,
    Unary,
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
_MOST_FACTORED_ROWS = {32: 4, 16: 1}
# With more, the sums that zero points are multiplied by cost more than what they save.
_MOST_SHIFTED_ROWS = 2
# Where rows take several tiles, each dequantizes the weights, which takes as long as so many rows more; high ones read
# rows that are too far apart for the first cache.
_DEQUANTIZING = 1.0
_MOST_OF_SEVERAL_TILES = 8
# So many rows repay a panel of dequantized weights, which is written to the second-level cache and read from there.
_LEAST_ROWS_OF_PANEL = {32: 160, 16: 12}
# Heights of tiles for a number of rows that is known only at run time, each with the fewest rows that it is chosen for.
_LEAST_ROWS_OF_TILE = {8: 17, 4: 4, 2: 2, 1: 0}
# Sums of a tile: as many registers are left for what is dequantized, and for sums along the inner axes.
_MOST_SUMS = {32: 16, 16: 6}
_WIDEST = 4


def dequantize_matmul(loops: Loops) -> Plan | Declined:
    """Plan contractions over groups that share a scale, and over packed integers."""
    if loops.in_order or len(loops.reduce) < 2 or loops.stage.first.reducer != "sum":
        return Declined("the stage is not a sum over quantization groups, or over values packed in a word")
    stored = _find_stored_integers(loops)
    vector = _axis_along(loops, stored) if stored else None
    if stored is None or vector is None or loops.is_masked(vector) or not isinstance(loops.extents[vector], int):
        return Declined("no operand has contiguous integers along an axis of known size")
    unrolled_axes = _choose_unrolled_axes(loops, stored)
    if len(unrolled_axes) == len(loops.reduce):
        return Declined("every reduced axis is unrolled, and none is left to walk")
    factored = _factor_out(loops)
    weight = _weight(loops, vector)
    if weight is None or not (unrolled_axes or factored):
        return Declined("neither values packed in a word nor a scale shared by a group")
    stream = _stream(loops, stored, unrolled_axes)
    plan = replace(loops.scalar(), vector=vector, lanes=loops.lanes(vector), unrolled_axes=unrolled_axes, stream=stream)
    return _tile_rows(loops, plan, vector, weight, factored)


def _tile_rows(loops: Loops, plan: Plan, vector: str, weight: Expr, factored: Factored | None) -> Plan:
    """Return the plan with tiles of as many rows as there are; a great many share weights that are dequantized once."""
    axis = next((name for name in reversed(loops.others(vector)) if name not in axes_of(weight)), None)
    rows = size_of(loops.extents[axis]) if axis else 1
    registers = loops.machine.vector_registers
    most, least_of_panel = _MOST_SUMS[registers], _LEAST_ROWS_OF_PANEL[registers]

    on_the_way = partial(_on_the_way, loops, plan, axis, factored)
    is_known = axis is None or isinstance(loops.extents[axis], int)
    if is_known and rows <= most:
        return on_the_way(rows)
    if is_known and rows < least_of_panel:
        return on_the_way(_height(rows, min(most, _MOST_OF_SEVERAL_TILES)))
    height, width = best_tile(rows, loops.vectors(vector), registers)
    panel = _panel(loops, weight, plan.lanes * width)
    once = replace(plan, tiles=((str(axis), height),), unroll=width, stream=None, panel=panel)
    if is_known:
        return once
    some = {height: least for height, least in _LEAST_ROWS_OF_TILE.items() if height <= most}
    fewer = tuple(replace(on_the_way(height), least_rows=least) for height, least in some.items())
    return replace(once, least_rows=least_of_panel, for_fewer_rows=fewer)


def _on_the_way(loops: Loops, plan: Plan, axis: str | None, factored: Factored | None, height: int) -> Plan:
    """Return the plan with tiles of so many rows, in which weights are dequantized as they are read."""
    registers = loops.machine.vector_registers
    split = factored if height <= _MOST_FACTORED_ROWS[registers] else None
    widest = _MOST_SUMS[registers] // height // (1 if split is None else 2)
    width = even_parts(loops.vectors(str(plan.vector)), max(1, min(_WIDEST, widest)))
    if split is not None and split.shift is None and height <= _MOST_SHIFTED_ROWS:
        split = _take_out_zero_point(split, loops)
    return replace(plan, tiles=((axis, height),) if axis else (), unroll=width, factored=split)


def _height(rows: int, most: int) -> int:
    """Return the height of the tiles that cover so many rows soonest, where each dequantizes the weights again."""
    return min(range(1, most + 1), key=lambda height: -(-rows // height) * (height + _DEQUANTIZING))


def _find_stored_integers(loops: Loops) -> Load | None:
    """Return the largest operand of integers."""
    integers = [load for load in loops.stage.first.loads if not dtypes.is_float(load.dtype)]
    return max(integers, key=lambda load: size_of(load.buffer.numel), default=None)


def _axis_along(loops: Loops, stored: Load) -> str | None:
    """Return the axis along which stored integers are contiguous."""
    offset = offset_of(stored.buffer, stored.indices)
    return next((name for name in loops.spatial if offset.coefficient(name) == 1), None)


def _choose_unrolled_axes(loops: Loops, stored: Load) -> tuple[str, ...]:
    """Return short reduced axes over packed integers: their values are literals then. Where the other operand is
    padded, its condition counts along the axes of groups and words, too, which are walked."""
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


def _factor_out(loops: Loops) -> Factored | None:
    """Factor out what is invariant along all reduced axes but the first."""
    inner = set(loops.reduce[1:])
    factors = _factors(loops.stage.first.body)
    outside = [factor for factor in factors if not axes_of(factor) & inner]
    inside = [factor for factor in factors if axes_of(factor) & inner]
    is_float = dtypes.is_float(loops.stage.first.body.dtype)
    if not inside or not is_float:
        return None
    return _with_minimum(outside, inside, loops) or (Factored(_product(outside), _product(inside)) if outside else None)


def _with_minimum(outside: list[Expr], inside: list[Expr], loops: Loops) -> Factored | None:
    """Take the scale and the minimum, invariant along inner axes, out of a factor `number * scale + minimum`."""
    inner = set(loops.reduce[1:])
    for number, each in enumerate(inside):
        times = _product([*inside[:number], *inside[number + 1 :]]) if len(inside) > 1 else None
        if not isinstance(each, Binary) or each.op != "add" or axes_of(each.b) & inner or times is None:
            continue
        parts = _factors(each.a)
        scales = [part for part in parts if not axes_of(part) & inner]
        numbers = [part for part in parts if axes_of(part) & inner]
        if scales and numbers and not axes_of(times) & (axes_of(each.b) - set(loops.reduce)):
            shift = Shift(_product([*outside, each.b]), times)
            return Factored(_product([*outside, *scales]), _product([times, *numbers]), shift)
    return None


def _take_out_zero_point(factored: Factored, loops: Loops) -> Factored:
    """Take a zero point, which is invariant along the inner axes, out of the factor that it is subtracted from."""
    inner, rest = set(loops.reduce[1:]), _factors(factored.rest)
    for number, each in enumerate(rest):
        if isinstance(each, Binary) and each.op == "sub" and axes_of(each.b) and not axes_of(each.b) & inner:
            times = _product([*rest[:number], *rest[number + 1 :]]) if len(rest) > 1 else None
            if times is not None and not axes_of(times) & (axes_of(each.b) - set(loops.reduce)):
                by = Unary("neg", Binary("mul", factored.factor, each.b))
                return replace(factored, rest=Binary("mul", times, each.a), shift=Shift(by, times))
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
