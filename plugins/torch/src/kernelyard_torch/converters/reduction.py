"""Reductions, running sums, extrema with their places, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Constant, Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

Axes = int | Sequence[int] | None


def reduced(node: Node, name: str, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """Return a reduction over some axes; over none of a tensor of rank 0."""
    return node.op(name, x, axes=node.axes(axes, node.rank(x)), keepdims=keepdims)


@converter("aten.sum.dim_IntList")
def sum_(node: Node, x: Expr, axes: Axes, keepdims: bool, *_: object) -> Expr:
    return reduced(node, "sum", node.cast(x, node.result.dtype), axes, keepdims)


@converter("aten.sum.default")
def sum_all(node: Node, x: Expr, *_: object) -> Expr:
    return sum_(node, x, None, False)


@converter("aten.mean.dim")
def mean(node: Node, x: Expr, axes: Axes, keepdims: bool, *_: object) -> Expr:
    return reduced(node, "mean", node.cast(x, node.result.dtype), axes, keepdims)


@converter("aten.mean.default")
def mean_all(node: Node, x: Expr, *_: object) -> Expr:
    return mean(node, x, None, False)


@converter("aten.prod.dim_int")
def prod(node: Node, x: Expr, axis: int, keepdims: bool, *_: object) -> Expr:
    return reduced(node, "prod", node.cast(x, node.result.dtype), axis, keepdims)


@converter("aten.prod.default")
def prod_all(node: Node, x: Expr, *_: object) -> Expr:
    return reduced(node, "prod", node.cast(x, node.result.dtype), None, False)


@converter("aten.amax.default")
def amax(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    return extremum(node, "max", x, axes, keepdims)


@converter("aten.amin.default")
def amin(node: Node, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    return extremum(node, "min", x, axes, keepdims)


@converter("aten.max.default")
def max_all(node: Node, x: Expr) -> Expr:
    return extremum(node, "max", x, None, False)


@converter("aten.min.default")
def min_all(node: Node, x: Expr) -> Expr:
    return extremum(node, "min", x, None, False)


def extremum(node: Node, name: str, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """Return the largest or smallest element; of truth values too."""
    if node.dtype(x) == "bool":
        name = {"max": "any", "min": "all"}[name]
    return reduced(node, name, x, axes, keepdims)


@converter("aten.max.dim")
def max_with_index(node: Node, x: Expr, axis: int, keepdims: bool) -> list[Expr | None]:
    return _with_index(node, "max", x, axis, keepdims)


@converter("aten.min.dim")
def min_with_index(node: Node, x: Expr, axis: int, keepdims: bool) -> list[Expr | None]:
    return _with_index(node, "min", x, axis, keepdims)


def _with_index(node: Node, name: str, x: Expr, axis: int, keepdims: bool) -> list[Expr | None]:
    value = extremum(node, name, x, axis, keepdims)
    return [value, _place(node, f"arg{name}", x, axis, keepdims) if node.is_used(1) else None]


def _place(node: Node, name: str, x: Expr, axis: int, keepdims: bool) -> Expr:
    if not node.rank(x):
        return Constant(0)
    x = node.cast(x, "uint8") if node.dtype(x) == "bool" else x
    return node.op(name, x, axis=node.axis(axis, node.rank(x)), keepdims=keepdims)


@converter("aten.argmax.default")
def argmax(node: Node, x: Expr, axis: int | None, keepdims: bool) -> Expr:
    return _index_of(node, "argmax", x, axis, keepdims)


@converter("aten.argmin.default")
def argmin(node: Node, x: Expr, axis: int | None, keepdims: bool) -> Expr:
    return _index_of(node, "argmin", x, axis, keepdims)


def _index_of(node: Node, name: str, x: Expr, axis: int | None, keepdims: bool) -> Expr:
    if axis is None:
        return node.reshape(_place(node, name, node.flat(x), 0, False), node.result.shape)
    return _place(node, name, x, axis, keepdims)


@converter("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(node: Node, x: Expr, axes: Axes = None, keepdims: bool = False) -> Expr:
    return _test(node, "any", x, axes, keepdims)


@converter("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(node: Node, x: Expr, axes: Axes = None, keepdims: bool = False) -> Expr:
    return _test(node, "all", x, axes, keepdims)


def _test(node: Node, name: str, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    x = node.cast(x, "bool")
    given_none = isinstance(axes, (list, tuple)) and not axes
    return x if given_none else reduced(node, name, x, axes, keepdims)


@converter("aten.var.correction")
def var(node: Node, x: Expr, axes: Axes, correction: float | None = None, keepdims: bool = False) -> Expr:
    return variance(node, x, axes, 1 if correction is None else correction, keepdims)


@converter("aten.var.dim")
def var_of_axes(node: Node, x: Expr, axes: Axes, unbiased: bool, keepdims: bool) -> Expr:
    return variance(node, x, axes, int(unbiased), keepdims)


@converter("aten.var_mean.correction")
def var_mean(node: Node, x: Expr, axes: Axes, correction: float | None = None, keepdims: bool = False) -> list[Expr]:
    spread = variance(node, x, axes, 1 if correction is None else correction, keepdims)
    return [spread, reduced(node, "mean", x, axes, keepdims)]


def variance(node: Node, x: Expr, axes: Axes, correction: float, keepdims: bool) -> Expr:
    """Return the mean square of the distance from the mean, over the count less `correction`."""
    over = node.axes(axes, node.rank(x))
    distance = node.op("subtract", x, node.op("mean", x, axes=over, keepdims=True))
    squares = node.op("sum", node.op("square", distance), axes=over, keepdims=keepdims)
    count = dims.product(node.shape(x)[axis] for axis in over)
    degrees = node.expr(count, "float64")
    if correction:
        degrees = node.op("maximum", node.op("subtract", degrees, correction), 0)
    return node.op("divide", squares, node.cast(degrees, node.dtype(x)))


@converter("aten.cumsum.default")
def cumsum(node: Node, x: Expr, axis: int, *_: object) -> Expr:
    x = node.cast(x, node.result.dtype)
    return node.op("cumsum", x, axis=node.axis(axis, node.rank(x))) if node.rank(x) else x


@converter("aten.cumprod.default")
def cumprod(node: Node, x: Expr, axis: int, *_: object) -> Expr:
    x = node.cast(x, node.result.dtype)
    return node.op("cumprod", x, axis=node.axis(axis, node.rank(x))) if node.rank(x) else x


@converter("aten.sort.default", "aten.sort.stable")
def sort(node: Node, x: Expr, *rest: object) -> list[Expr]:
    *_, axis, descending = rest
    assert isinstance(axis, int)
    size = node.shape(x)[node.axis(axis, node.rank(x))] if node.rank(x) else 1
    return topk(node, x, size, axis, bool(descending), True)


@converter("aten.topk.default")
def topk(node: Node, x: Expr, k: Dim, axis: int, largest: bool, sorted_: bool) -> list[Expr]:
    if not node.rank(x):
        return [x, Constant(0)]
    dtype = node.dtype(x)
    x = node.cast(x, "uint8") if dtype == "bool" else x
    at = node.axis(axis, node.rank(x))
    values, places = node.ops("topk", x, k=k, axis=at, largest=largest, sorted=sorted_)
    return [node.cast(values, dtype), places]
