"""Rules of operators that move elements: permute, broadcast, concat, split, slice, flip, tile, pad, triangles."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.legalize.common import Source, broadcast_index
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.ops.type_rules import clamp_size, is_nonnegative
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr, const, index, maximum, minimum, select

Ints = tuple[int, ...]


@legalize("reshape")
def reshape(b: RuleBuilder, x: Operand, *, shape: tuple[Dim, ...]) -> Buffer:
    """Copy in the new shape; executables only need this where a view of the same memory will not do."""

    def source(at: Sequence[Axis]) -> tuple[Expr, ...]:
        flat = index(0)
        for dim, value in zip(shape, at, strict=True):
            flat = flat * dim + value
        found: list[Expr] = []
        for dim in reversed(x.shape[1:]):
            found.append(flat % dim)
            flat = flat // dim
        return tuple(reversed([*found, flat][: x.rank]))

    return b.compute(shape, lambda *at: x[source(at)])


@legalize("permute_dims")
def permute_dims(b: RuleBuilder, x: Operand, *, axes: Ints) -> Buffer:
    return b.compute(b.result.shape, lambda *at: x[tuple(at[axes.index(n)] for n in range(x.rank))])


@legalize("broadcast_to")
def broadcast_to(b: RuleBuilder, x: Operand, *, shape: tuple[Dim, ...]) -> Buffer:
    return b.compute(shape, lambda *at: x[broadcast_index(x.shape, shape, at)])


@legalize("concat")
def concat(b: RuleBuilder, *xs: Operand, axis: int) -> Buffer:
    axis %= xs[0].rank
    result = b.buffer(b.result.shape, b.result.dtype)
    start: Dim = 0
    for x in xs:
        _copy(b, x, result, tuple(start if n == axis else 0 for n in range(x.rank)))
        start = start + x.shape[axis]
    return result


def _copy(b: RuleBuilder, x: Source, target: Buffer, offset: Sequence[Dim]) -> None:
    b.store(
        target,
        x.shape,
        lambda *at: [value + start for value, start in zip(at, offset, strict=True)],
        lambda *at: x[at],
    )


@legalize("split")
def split(b: RuleBuilder, x: Operand, *, axis: int, sections: tuple[Dim, ...]) -> tuple[Buffer, ...]:
    axis %= x.rank
    pieces: list[Buffer] = []
    start: Dim = 0
    for result, size in zip(b.results, sections, strict=True):
        pieces.append(_piece(b, x, axis, start, result.shape))
        start = start + size
    return tuple(pieces)


def _piece(b: RuleBuilder, x: Operand, axis: int, start: Dim, shape: tuple[Dim, ...]) -> Buffer:
    return b.compute(shape, lambda *at: x[(*at[:axis], at[axis] + start, *at[axis + 1 :])])


@legalize("strided_slice")
def strided_slice(
    b: RuleBuilder, x: Operand, *, axes: Ints, begin: tuple[Dim, ...], end: tuple[Dim, ...], strides: Ints
) -> Buffer:
    rows = {axis % x.rank: row for axis, row in zip(axes, zip(begin, strides, strict=True), strict=True)}

    def source(n: int, at: Axis) -> Expr:
        first, stride = rows.get(n, (0, 1))
        return at * stride + first

    return b.compute(b.result.shape, lambda *at: x[tuple(source(n, value) for n, value in enumerate(at))])


@legalize("flip")
def flip(b: RuleBuilder, x: Operand, *, axes: Ints) -> Buffer:
    return b.compute(
        x.shape,
        lambda *at: x[tuple(index(x.shape[n]) - 1 - value if n in axes else value for n, value in enumerate(at))],
    )


@legalize("tile")
def tile(b: RuleBuilder, x: Operand, *, repeats: Ints) -> Buffer:
    return b.compute(
        b.result.shape,
        lambda *at: x[tuple(v if r == 1 else v % d for v, r, d in zip(at, repeats, x.shape, strict=True))],
    )


@legalize("trilu")
def trilu(b: RuleBuilder, x: Operand, *, k: int, upper: bool) -> Buffer:
    def body(*at: Axis) -> Expr:
        row, column = at[-2], at[-1]
        return select(column - row >= k if upper else column - row <= k, x[at], const(0, x.dtype))

    return b.compute(x.shape, body)


# --- pad ------------------------------------------------------------------------------------------------------------
@legalize("pad")
def pad(b: RuleBuilder, x: Operand, *, pads: tuple[Dim, ...], mode: str, value: float) -> Buffer:
    return pad_tensor(b, x, pads[: x.rank], pads[x.rank :], mode, value)


def pad_tensor(
    b: RuleBuilder, x: Source, begins: Sequence[Dim], ends: Sequence[Dim], mode: str, value: float | int | bool
) -> Buffer:
    """Pad `x`; every element is written once, without a choice in the inner loop.

    The middle is copied; then, axis by axis, the strips before and after it: axes to the left of the strip's run over
    the middle alone, axes to its right over everything.
    """
    shape = tuple(clamp_size(d + p + q) for d, p, q in zip(x.shape, begins, ends, strict=True))
    result = b.buffer(shape, x.dtype, "padded")
    crops = [dims.maximum(-p, 0) for p in begins]
    starts = [dims.maximum(p, 0) for p in begins]
    middle = [
        clamp_size(d - crop - dims.maximum(-q, 0)) if p != 0 or q != 0 else d
        for d, crop, p, q in zip(x.shape, crops, begins, ends, strict=True)
    ]
    b.store(
        result,
        middle,
        lambda *at: [v + s for v, s in zip(at, starts, strict=True)],
        lambda *at: x[tuple(v + c for v, c in zip(at, crops, strict=True))],
    )
    for axis, (before, after) in enumerate(zip(begins, ends, strict=True)):
        for size, other, start in ((before, after, 0), (after, before, starts[axis] + middle[axis])):
            strip = dims.maximum(size, 0)
            if not is_nonnegative(x.shape[axis] + other):  # the other side crops all of x and goes on in this strip
                strip = dims.minimum(strip, shape[axis])
            if strip != 0:
                extents = (*middle[:axis], strip, *shape[axis + 1 :])
                offset = (*starts[:axis], start, *[0] * (len(shape) - axis - 1))
                _fill_strip(b, x, result, extents, offset, begins, mode, value)
    return result


def _fill_strip(
    b: RuleBuilder,
    x: Source,
    result: Buffer,
    extents: Sequence[Dim],
    offset: Sequence[Dim],
    begins: Sequence[Dim],
    mode: str,
    value: float | int | bool,
) -> None:
    def body(*at: Axis) -> Expr:
        if mode == "constant":
            return const(value, x.dtype)
        places = (v + (s - p) for v, s, p in zip(at, offset, begins, strict=True))
        return x[tuple(_border(mode, place, dim) for place, dim in zip(places, x.shape, strict=True))]

    b.store(result, extents, lambda *at: [v + s for v, s in zip(at, offset, strict=True)], body)


def _border(mode: str, at: Expr, size: Dim) -> Expr:
    """Return the index in an axis of `size` that padding reads for position `at`, which may be outside."""
    if mode == "edge":
        return minimum(maximum(at, 0), index(size) - 1)
    if mode == "wrap":
        outside = at % index(size)
    else:  # reflect: there and back again, as often as it takes
        period = dims.maximum((size - 1) * 2, 1)
        step = at % index(period)
        outside = minimum(step, index(period) - step) if size != 1 else index(0)
    return select((at >= 0) & (at < index(size)), at, outside)
