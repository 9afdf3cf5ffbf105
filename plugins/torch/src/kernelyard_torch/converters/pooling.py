"""Pooling over windows, and to given sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr, window_table
from kernelyard_torch.node import Node
from kernelyard_torch.registry import Converter, converter, register


def per_axis(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one number for every spatial axis."""
    return tuple(values) if len(values) == rank else tuple(values) * rank


def _max_pool(rank: int) -> Converter:
    def convert(
        node: Node,
        x: Expr,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> list[Expr | None]:
        attrs = _window(rank, kernel, strides, padding, dilation)
        pads = attrs["padding"]
        batched = _add_batch(node, x, rank)
        values = node.op(f"nn.max_pool{rank}d", batched, **{**attrs, "padding": (*pads, *pads)}, ceil_mode=ceil_mode)
        places = _window_maxima(node, batched, values, attrs) if node.is_used(1) else None
        results = node.results
        return [
            None if each is None or type_ is None else node.reshape(each, type_.shape)
            for each, type_ in zip((values, places), results, strict=True)
        ]

    return convert


def _window(
    rank: int, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    size = per_axis(kernel, rank)
    return {
        "pool_size": size,
        "strides": per_axis(strides, rank) if strides else size,
        "padding": per_axis(padding, rank),
        "dilation": per_axis(dilation, rank),
    }


def _add_batch(node: Node, x: Expr, rank: int) -> Expr:
    return x if node.rank(x) == rank + 2 else node.reshape(x, (1, *node.shape(x)))


def _window_maxima(node: Node, x: Expr, pooled: Expr, attrs: dict[str, tuple[int, ...]]) -> Expr:
    """Return the index of each window's maximum within its plane; planes must have known sizes."""
    sizes = node.require_all_fixed(node.shape(x)[2:], "the size of a plane")
    out = node.require_all_fixed(node.shape(pooled)[2:], "the size of the result")
    table = window_table(sizes, out, *attrs.values())
    return node.reshape(node.places_of_maxima(x, table, table), node.shape(pooled))


def _avg_pool(rank: int) -> Converter:
    def convert(
        node: Node,
        x: Expr,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> Expr:
        attrs = _window(rank, kernel, strides, padding, (1,))
        pads = attrs["padding"]
        batched = _add_batch(node, x, rank)
        if divisor is not None:
            return _sums(node, batched, attrs, divisor)
        dtype = node.dtype(x)
        batched = batched if is_float(dtype) else node.cast(batched, "float64")
        attrs["padding"] = (*pads, *pads)
        mean = node.op(
            f"nn.avg_pool{rank}d", batched, **attrs, ceil_mode=ceil_mode, count_include_pad=count_include_pad
        )
        return node.reshape(node.cast(mean, dtype), node.result.shape)

    return convert


def _sums(node: Node, x: Expr, attrs: dict[str, tuple[int, ...]], divisor: int) -> Expr:
    """Return the sum of each window over a given divisor; planes must have known sizes."""
    rank = len(attrs["pool_size"])
    sizes = node.require_all_fixed(node.shape(x)[2:], "the size of a plane")
    out = node.require_all_fixed(node.result.shape[-rank:], "the size of the result")
    table = window_table(sizes, out, *attrs.values())
    planes = node.reshape(x, (*node.shape(x)[:2], int(np.prod(sizes))))
    taken = node.op("take", planes, np.maximum(table, 0), axis=2)
    zero = node.full(0, (), node.dtype(x))
    total = node.op("sum", node.op("where", table >= 0, taken, zero), axes=(3,))
    return node.reshape(node.op("divide", total, divisor), node.result.shape)


for _rank in (1, 2, 3):
    register(f"aten.avg_pool{_rank}d.default", _avg_pool(_rank))
for _rank in (2, 3):
    register(f"aten.max_pool{_rank}d_with_indices.default", _max_pool(_rank))


@converter("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
@converter("aten.adaptive_avg_pool1d.default")
def adaptive_avg_pool(node: Node, x: Expr, sizes: Sequence[Dim]) -> Expr:
    """Average by matrix products with weights; whole planes by the mean, equal windows by a pool."""
    rank = len(sizes)
    axes = range(node.rank(x) - rank, node.rank(x))
    if all(size == 1 for size in sizes):
        return node.op("mean", x, axes=tuple(axes), keepdims=True)
    whole = [node.shape(x)[axis] for axis in axes]
    if all(_divides(part, size) for part, size in zip(sizes, whole, strict=True)):
        kernel = tuple(size // part for part, size in zip(sizes, whole, strict=True))  # pyright: ignore
        pooled = node.op(f"nn.avg_pool{rank}d", _add_batch(node, x, rank), pool_size=kernel, strides=kernel)
        return node.reshape(pooled, node.result.shape)
    for axis, part in zip(axes, sizes, strict=True):
        size, count = node.shape(x)[axis], node.require_fixed(part, "a size of its result")
        if isinstance(size, int):
            x = node.times_matrix(x, axis, mean_matrix(size, count).T)
        else:
            x = node.times(x, axis, _means(node, size, count, node.dtype(x)))
    return x


def _means(node: Node, size: Dim, parts: int, dtype: str) -> Expr:
    """(size, parts): `mean_matrix`, transposed, of a size that is known when the program runs."""
    inside = node.cast(_members(node, size, parts), dtype)
    return node.op("divide", inside, node.op("sum", inside, axes=(0,), keepdims=True))


def _members(node: Node, size: Dim, parts: int) -> Expr:
    """(size, parts), bool: whether each place is in each part, of a size that is known when the program runs."""
    steps = node.op("multiply", np.arange(parts + 1), node.expr(size, "int64"))
    begin = _floor(node, node.slice(steps, 0, 0, parts), parts)
    end = node.op("add", _floor(node, node.op("subtract", node.slice(steps, 0, 1, parts + 1), 1), parts), 1)
    places = node.reshape(node.op("arange", start=0, step=1, count=size, dtype="int64"), (size, 1))
    return node.op("logical_and", node.op("greater_equal", places, begin), node.op("less", places, end))


def _floor(node: Node, x: Expr, divisor: int) -> Expr:
    return node.op("divide", node.op("subtract", x, node.op("mod", x, divisor)), divisor)


@converter("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(node: Node, x: Expr, sizes: Sequence[Dim]) -> list[Expr | None]:
    """Return the largest elements, and where they are: of whole planes, of windows, or of uneven parts axis by axis."""
    rank = len(sizes)
    axes = range(node.rank(x) - rank, node.rank(x))
    places = _places_in_parts(node, x, sizes) if node.is_used(1) else None
    whole = [node.shape(x)[axis] for axis in axes]
    if all(size == 1 for size in sizes):
        return [node.op("max", x, axes=tuple(axes), keepdims=True), places]
    if all(_divides(part, size) for part, size in zip(sizes, whole, strict=True)):
        kernel = tuple(size // part for part, size in zip(sizes, whole, strict=True))  # pyright: ignore
        pooled = node.op(f"nn.max_pool{rank}d", _add_batch(node, x, rank), pool_size=kernel, strides=kernel)
        return [node.reshape(pooled, node.result.shape), places]
    for axis, part in zip(axes, sizes, strict=True):
        x = _largest_of_parts(node, x, axis, node.require_fixed(part, "a size of its result"))
    return [x, places]


def _largest_of_parts(node: Node, x: Expr, axis: int, count: int) -> Expr:
    size = node.shape(x)[axis]
    if isinstance(size, int):
        return node.op("max", node.op("take", x, _part_table(size, count), axis=axis), axes=(axis + 1,))
    hidden = node.full(node.neutral("max", node.dtype(x)), (), node.dtype(x))
    shape = (size, count, *(1,) * (node.rank(x) - axis - 1))
    inside = node.reshape(_members(node, size, count), shape)
    return node.op("max", node.op("where", inside, node.unsqueeze(x, axis + 1), hidden), axes=(axis,))


def _places_in_parts(node: Node, x: Expr, sizes: Sequence[Dim]) -> Expr:
    """Return the index of each part's maximum within its plane; planes must have known sizes."""
    rank = len(sizes)
    batched = _add_batch(node, x, rank)
    whole = node.require_all_fixed(node.shape(batched)[2:], "the size of a plane")
    parts = node.require_all_fixed(sizes, "a size of its result")
    tables = [_part_table(size, count) for size, count in zip(whole, parts, strict=True)]
    grids = np.ix_(*(table.reshape(-1) for table in tables))
    flat = np.ravel_multi_index(np.broadcast_arrays(*grids), whole).reshape([n for t in tables for n in t.shape])
    table = flat.transpose(*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)).reshape(int(np.prod(parts)), -1)
    return node.reshape(node.places_of_maxima(batched, table, table), (*node.shape(x)[: node.rank(x) - rank], *parts))


def _part_table(size: int, count: int) -> np.ndarray:
    """(count, length of the longest part): the places that each part covers; shorter ones repeat their last.

    Example:
        >>> _part_table(5, 2).tolist()
        [[0, 1, 2], [2, 3, 4]]
    """
    starts = np.arange(count)
    begin, end = starts * size // count, -(-(starts + 1) * size // count)
    longest = int((end - begin).max(initial=1))
    return np.minimum(begin[:, None] + np.arange(longest), end[:, None] - 1)


def _divides(part: Dim, size: Dim) -> bool:
    return isinstance(part, int) and isinstance(size, int) and part > 0 and size % part == 0


def mean_matrix(size: int, parts: int) -> np.ndarray:
    """(parts, size): the weight of each element in the mean of each part; uneven parts overlap."""
    matrix = np.zeros((parts, size))
    for row in range(parts):
        begin, end = row * size // parts, -(-(row + 1) * size // parts)
        matrix[row, begin:end] = 1 / (end - begin)
    return matrix
