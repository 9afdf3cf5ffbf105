"""Reductions, running sums, extrema with their places, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Constant, Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import Converter, converter, register

Axes = int | Sequence[int] | None


def reduce(node: Node, name: str, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """Return a reduction over some axes; over none of a tensor of rank 0."""
    return node.op(name, x, axes=node.axes(axes, node.rank(x)), keepdims=keepdims)


def extremum(node: Node, name: str, x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """Return the largest or smallest element; of truth values too."""
    if node.dtype(x) == "bool":
        name = {"max": "any", "min": "all"}[name]
    return reduce(node, name, x, axes, keepdims)


def _with_index(node: Node, name: str, x: Expr, axis: int, keepdims: bool) -> list[Expr | None]:
    value = extremum(node, name, x, axis, keepdims)
    return [value, _place(node, f"arg{name}", x, axis, keepdims) if node.is_used(1) else None]


def _place(node: Node, name: str, x: Expr, axis: int, keepdims: bool) -> Expr:
    if not node.rank(x):
        return Constant(0)
    x = node.cast(x, "uint8") if node.dtype(x) == "bool" else x
    return node.op(name, x, axis=node.axis(axis, node.rank(x)), keepdims=keepdims)


def _index_of(node: Node, name: str, x: Expr, axis: int | None, keepdims: bool) -> Expr:
    if axis is None:
        return node.reshape(_place(node, name, node.flat(x), 0, False), node.result.shape)
    return _place(node, name, x, axis, keepdims)


def _test(node: Node, name: str, x: Expr, axes: Axes = None, keepdims: bool = False) -> Expr:
    x = node.cast(x, "bool")
    given_none = isinstance(axes, (list, tuple)) and not axes
    return x if given_none else reduce(node, name, x, axes, keepdims)


def _sum(node: Node, name: str, x: Expr, axes: Axes, keepdims: bool, *_: object) -> Expr:
    return reduce(node, name, node.cast(x, node.result.dtype), axes, keepdims)


def _sum_of_all(node: Node, name: str, x: Expr, *_: object) -> Expr:
    return _sum(node, name, x, None, False)


def _extremum_of_all(node: Node, name: str, x: Expr) -> Expr:
    return extremum(node, name, x, None, False)


# By the operators' names: what converts them, and the name of the reduction.
_NAMED: dict[str, tuple[Converter, str]] = {
    "sum.dim_IntList": (_sum, "sum"),
    "sum.default": (_sum_of_all, "sum"),
    "mean.dim": (_sum, "mean"),
    "mean.default": (_sum_of_all, "mean"),
    "prod.dim_int": (_sum, "prod"),
    "prod.default": (_sum_of_all, "prod"),
    "amax.default": (extremum, "max"),
    "amin.default": (extremum, "min"),
    "max.default": (_extremum_of_all, "max"),
    "min.default": (_extremum_of_all, "min"),
    "max.dim": (_with_index, "max"),
    "min.dim": (_with_index, "min"),
    "argmax.default": (_index_of, "argmax"),
    "argmin.default": (_index_of, "argmin"),
    **{f"{name}.{overload}": (_test, name) for name in ("any", "all") for overload in ("default", "dim", "dims")},
}


def _of(function: Converter, name: str) -> Converter:
    return lambda node, *args: function(node, name, *args)


for _name, _how in _NAMED.items():
    register(f"aten.{_name}", _of(*_how))


@converter("aten.var.correction")
def var(node: Node, x: Expr, axes: Axes, correction: float | None = None, keepdims: bool = False) -> Expr:
    return variance(node, x, axes, 1 if correction is None else correction, keepdims)


@converter("aten.var.dim")
def var_of_axes(node: Node, x: Expr, axes: Axes, unbiased: bool, keepdims: bool) -> Expr:
    return variance(node, x, axes, int(unbiased), keepdims)


@converter("aten.var_mean.correction")
def var_mean(node: Node, x: Expr, axes: Axes, correction: float | None = None, keepdims: bool = False) -> list[Expr]:
    spread = variance(node, x, axes, 1 if correction is None else correction, keepdims)
    return [spread, reduce(node, "mean", x, axes, keepdims)]


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
