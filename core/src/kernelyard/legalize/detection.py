"""Rules of detectors: samples in regions of interest, and greedy suppression of boxes that overlap a better one."""

from __future__ import annotations

import functools
import operator

from kernelyard.dims import Dim
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.records import record
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Axis, Expr, cast, const, equal, index, maximum, minimum, select, unary
from kernelyard.tir.iterate import iterate

_WIDE = "float64"
_ALL = (1 << 31) - 1  # the walk over kept boxes ends by itself
_COUNT = 32  # bits of a place plus one; above them stands a count


# --- roi_align --------------------------------------------------------------------------------------------------------
@record
class _Samples:
    """Where the samples along an axis lie, (regions, cells, samples): between elements `low` and `high`, each with its
    weight, which is 0 for samples outside of the image.
    """

    low: Buffer
    high: Buffer
    low_weight: Buffer
    high_weight: Buffer

    def terms(self, at: tuple[Expr, ...]) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        """Return the indices of the two elements around a sample, each with its weight."""
        return (self.low[at], self.low_weight[at]), (self.high[at], self.high_weight[at])


@legalize("image.roi_align", widen=True)
def roi_align(
    b: RuleBuilder,
    x: Operand,
    rois: Operand,
    batch_indices: Operand,
    *,
    sizes: tuple[int, int],
    sampling_ratio: int,
    spatial_scale: float,
    mode: str,
    half_pixel: bool,
) -> Buffer:
    def samples(axis: int, first: int, last: int) -> _Samples:
        def corner(region: Expr, column: int) -> Expr:
            return cast(rois[region, column], _WIDE) * spatial_scale - (0.5 if half_pixel else 0.0)

        def position(region: Expr, cell: Expr, sample: Expr) -> Expr:
            extent = corner(region, last) - corner(region, first)
            extent = extent if half_pixel else maximum(extent, 1)
            within = (cast(sample, _WIDE) + 0.5) / sampling_ratio
            return corner(region, first) + (cast(cell, _WIDE) + within) * (extent / sizes[axis])

        positions = b.compute((b.result.shape[0], sizes[axis], sampling_ratio), position, "positions")
        return _samples_at(b, positions, x.shape[2 + axis], x.dtype)

    rows, columns = samples(0, 1, 3), samples(1, 0, 2)

    def terms(at: tuple[Expr, ...], point: tuple[Expr, ...]) -> list[Expr]:
        region, channel, row, column = at
        image = _clamp_index(cast(batch_indices[region], INDEX), x.shape[0])
        return [
            x[image, channel, y, z] * (row_weight * column_weight)
            for y, row_weight in rows.terms((region, row, point[0]))
            for z, column_weight in columns.terms((region, column, point[1]))
        ]

    shape, extents = b.result.shape, (sampling_ratio, sampling_ratio)
    if mode == "max":
        return b.reduce("max", shape, extents, lambda at, point: functools.reduce(maximum, terms(at, point)))
    total = b.reduce("sum", shape, extents, lambda at, point: functools.reduce(operator.add, terms(at, point)))
    return b.compute(shape, lambda *at: total[at] / (sampling_ratio * sampling_ratio))


def _samples_at(b: RuleBuilder, positions: Buffer, size: Dim, dtype: str) -> _Samples:
    """Return the samples at some positions of an axis with `size` elements, the weights in a dtype."""
    last = cast(index(size), _WIDE) - 1

    def clip(at: tuple[Expr, ...]) -> Expr:
        return minimum(maximum(positions[at], 0), last)

    def element(at: tuple[Expr, ...], step: int) -> Expr:
        return _clamp_index(cast(unary("floor", clip(at)), INDEX) + step, size)

    def weight(at: tuple[Expr, ...], *, is_high: bool) -> Expr:
        share = clip(at) - unary("floor", clip(at))
        is_inside = (positions[at] >= -1) & (positions[at] <= last + 1)
        return cast(select(is_inside, share if is_high else 1 - share, 0), dtype)

    return _Samples(
        b.compute(positions.shape, lambda *at: element(at, 0), "low"),
        b.compute(positions.shape, lambda *at: element(at, 1), "high"),
        b.compute(positions.shape, lambda *at: weight(at, is_high=False), "low_weight"),
        b.compute(positions.shape, lambda *at: weight(at, is_high=True), "high_weight"),
    )


def _clamp_index(place: Expr, size: Dim) -> Expr:
    """Return an index that touches no other memory, whatever it is computed from."""
    return minimum(maximum(place, 0), index(size) - 1)


# --- suppress_boxes ---------------------------------------------------------------------------------------------------
@legalize("image.suppress_boxes")
def suppress_boxes(b: RuleBuilder, boxes: Operand, groups: Operand, most: Operand, overlap: Operand) -> Buffer:
    """Scan the boxes: element i is the last box kept up to i, its place plus one, with the number kept of its group.

    So the kept boxes are a linked list from the last to the first: before box p comes the one that element p - 1 names.
    """
    (count,) = b.result.shape
    areas = b.compute((count,), lambda i: (boxes[i, 2] - boxes[i, 0]) * (boxes[i, 3] - boxes[i, 1]), "areas")

    def overlaps(one: Expr, other: Expr) -> Expr:
        sides = [
            maximum(
                minimum(boxes[one, axis + 2], boxes[other, axis + 2]) - maximum(boxes[one, axis], boxes[other, axis]), 0
            )
            for axis in range(2)
        ]
        common = sides[0] * sides[1]
        union = areas[one] + areas[other] - common
        return select(common > 0, common / union, 0) > overlap[()]  # most boxes are apart: nothing to divide

    def body(kept: Buffer, at: tuple[Axis, ...]) -> Expr:
        (here,) = at

        def before(place: Expr) -> Expr:
            return select(place > 0, kept[maximum(place - 1, 0)], 0)

        def is_of_group(place: Expr) -> Expr:
            """Return whether a box, which may be none (-1), is of the group of this one."""
            return select(place < 0, const(False, "bool"), equal(groups[maximum(place, 0)], groups[here]))

        def previous(place: Expr) -> Expr:
            goes_on = select(is_of_group(place), ~overlaps(maximum(place, 0), here), const(False, "bool"))
            return select(goes_on, _unpack_box(before(place)), place)

        last = before(here)
        number = select(is_of_group(_unpack_box(last)), _count(last), 0)
        is_wanted = number < most[()]
        found = iterate("place", select(is_wanted, _unpack_box(last), -1), _ALL, previous)
        is_kept = is_wanted & ~is_of_group(found)
        return select(is_kept, (number + 1) * index(1 << _COUNT) + here + 1, last)

    kept = b.scan((count,), 0, body, INDEX, name="kept")
    return b.compute((count,), lambda i: equal(_unpack_box(kept[i]), i))


def _unpack_box(element: Expr) -> Expr:
    """Return the box that an element of the scan names; -1 for none."""
    return element % index(1 << _COUNT) - 1


def _count(element: Expr) -> Expr:
    return element // index(1 << _COUNT)
