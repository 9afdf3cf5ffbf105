"""Idioms of order: counts, runs, modes, searches and running extrema along the last axis, as frontends write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kernelyard.ir import Constant, Var
from kernelyard_fuzz.writer import Writer


def _whole(number: int) -> Constant:
    return Constant(np.asarray(number, np.int64))


def _last(w: Writer, x: Var) -> tuple[int, int]:
    """Return the last axis, and its size."""
    shape = w.sketch.arrays[x].shape
    return len(shape) - 1, shape[-1]


def _sort(w: Writer, x: Var) -> Var:
    """Sort all elements along the last axis; equal ones are many."""
    axis, size = _last(w, x)
    rounded = w.op("round", w.op("multiply", x, w.chooser.pick((0.5, 1.0, 2.0))))
    return w.op("topk", rounded, k=size, axis=axis, largest=w.chooser.chance(50))


def _positions(w: Writer, x: Var) -> Constant:
    shape = w.sketch.arrays[x].shape
    return Constant(np.ascontiguousarray(np.broadcast_to(np.arange(shape[-1]), shape)))


def _bins(w: Writer, x: Var, count: int) -> Var:
    """Whole numbers from 0 to below `count` that follow from x."""
    scaled = w.op("clip", w.op("floor", w.op("multiply", x, 2.0)), min=0.0, max=count - 1.0)
    return w.op("astype", scaled, dtype="int64")


def _counts(w: Writer, x: Var) -> Var:
    """How often each number occurs, or sums of the elements with it."""
    count = w.chooser.between(1, 9)
    flat = w.of_rank(x, 1)
    places = _bins(w, flat, count)
    is_weighted = w.chooser.chance(50)
    ones = Constant(np.ones(w.sketch.arrays[flat].shape, np.int64))
    nothing = Constant(np.zeros(count, np.float32 if is_weighted else np.int64))
    counted = flat if is_weighted else ones
    return w.op("scatter_elements", nothing, places, counted, axis=0, reduction="add")


def _runs(w: Writer, x: Var) -> Var:
    """The number of the run of equal elements that each is part of."""
    axis, size = _last(w, x)
    values = w.op("round", w.op("multiply", x, w.chooser.pick((0.5, 1.0))))
    later = w.op("strided_slice", values, axes=(axis,), begin=(1,), end=(size,), strides=(1,))
    earlier = w.op("strided_slice", values, axes=(axis,), begin=(0,), end=(size - 1,), strides=(1,))
    differs = w.op("astype", w.op("not_equal", later, earlier), dtype="int64")
    first = Constant(np.ones((*w.sketch.arrays[x].shape[:-1], 1), np.int64))
    return w.op("subtract", w.op("cumsum", w.op("concat", first, differs, axis=axis), axis=axis), _whole(1))


def _running_maximum(w: Writer, x: Var) -> Var:
    """The largest so far: in each step twice as many elements are seen."""
    axis, size = _last(w, x)
    here, shift = _positions(w, x), 1
    while shift < size:
        earlier = Constant(np.maximum(here.data - shift, 0))
        x = w.op(w.chooser.pick(("maximum", "maximum", "add")), w.op("gather_elements", x, earlier, axis=axis), x)
        shift *= 2
    return x


def _mode(w: Writer, x: Var) -> Var:
    """The most frequent value: the end of the longest run of what is in order."""
    axis, _ = _last(w, x)
    values, here = _sort(w, x), _positions(w, x)
    before = w.op("gather_elements", values, Constant(np.maximum(here.data - 1, 0)), axis=axis)
    is_first = w.op("not_equal", values, before)
    start = _running_maximum(w, w.op("where", is_first, here, _whole(0)))
    is_last = w.chooser.chance(30)  # of runs that are equally long
    last = w.op("argmax", w.op("subtract", here, start), axis=axis, keepdims=True, select_last_index=is_last)
    return w.op("gather_elements", values, last, axis=axis)


def _search(w: Writer, x: Var) -> Var:
    """Where values belong in an ordered sequence: a gather for each step of a binary search."""
    size = w.chooser.between(1, 17)
    sequence = Constant(np.sort(w.array(size)))
    shape = w.sketch.arrays[x].shape
    low, high = Constant(np.zeros(shape, np.int64)), Constant(np.full(shape, size, np.int64))
    is_right = w.chooser.chance(50)
    for _ in range(size.bit_length()):
        middle = w.op("right_shift", w.op("add", low, high), _whole(1))
        found = w.op("take", sequence, w.op("minimum", middle, _whole(size - 1)), axis=0)
        is_behind = w.op("greater" if is_right else "greater_equal", found, x)
        is_open = w.op("less", low, high)
        follows = w.op("logical_and", is_open, w.op("logical_not", is_behind))
        low = w.op("where", follows, w.op("add", middle, _whole(1)), low)
        high = w.op("where", w.op("logical_and", is_open, is_behind), middle, high)
    assert isinstance(low, Var)
    return low


ORDER_IDIOMS: Mapping[str, Callable[[Writer, Var], Var]] = {
    "counts": _counts,
    "runs": _runs,
    "running_maximum": _running_maximum,
    "mode": _mode,
    "search": _search,
}
