"""Reductions."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import Converter, converter, register

Reduce = Callable[[Node, Expr, tuple[int, ...], bool], Expr]


ON_BOOL = {"max": "any", "min": "all"}


def _plain(name: str) -> Reduce:
    def reduce(node: Node, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
        # () means all axes to the op; a scalar, or a reduction over no axes, is left as it is.
        if not axes:
            return x
        shape = node.shape(x)
        if name in ON_BOOL and node.dtype(x) == "bool":
            return node.op(ON_BOOL[name], x, axes=axes, keepdims=keepdims)
        if name in ON_BOOL and any(shape[axis] == 0 for axis in axes):
            left = [1 if axis in axes else dim for axis, dim in enumerate(shape) if keepdims or axis not in axes]
            return node.full(node.neutral(name, node.dtype(x)), left, node.dtype(x))
        return node.op(name, x, axes=axes, keepdims=keepdims)

    return reduce


def _l1(node: Node, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return _plain("sum")(node, node.op("abs", x), axes, keepdims)


def _sum_square(node: Node, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return _plain("sum")(node, node.op("multiply", x, x), axes, keepdims)


def _compute_in_floats(reduce: Reduce) -> Reduce:
    """Return a reduction that computes in floats; of whole numbers, it gives their part before the point."""

    def in_floats(node: Node, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
        dtype = node.dtype(x)
        if is_float(dtype):
            return reduce(node, x, axes, keepdims)
        return node.cast(reduce(node, node.cast(x, "float64"), axes, keepdims), dtype)

    return in_floats


def _l2(node: Node, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.op("sqrt", _sum_square(node, x, axes, keepdims))


def _log_sum(node: Node, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.op("log", _plain("sum")(node, x, axes, keepdims))


def _log_sum_exp(node: Node, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    """log(sum(exp(x))) with the largest element taken out, so that exp does not overflow."""
    largest = _plain("max")(node, x, axes, True)
    finite = node.op("where", node.op("isinf", largest), node.full(0, (), node.dtype(x)), largest)
    total = _plain("sum")(node, node.op("exp", node.op("subtract", x, finite)), axes, True)
    result = node.op("add", node.op("log", total), finite)
    if keepdims or not axes:
        return result
    kept = [dim for axis, dim in enumerate(node.shape(result)) if axis not in axes]
    return node.reshape(result, kept)


REDUCTIONS: dict[str, Reduce] = {
    "ReduceSum": _plain("sum"),
    "ReduceMean": _plain("mean"),
    "ReduceMax": _plain("max"),
    "ReduceMin": _plain("min"),
    "ReduceProd": _plain("prod"),
    "ReduceL1": _l1,
    "ReduceL2": _compute_in_floats(_l2),
    "ReduceSumSquare": _sum_square,
    "ReduceLogSum": _compute_in_floats(_log_sum),
    "ReduceLogSumExp": _compute_in_floats(_log_sum_exp),
}


def _reduction(reduce: Reduce) -> Converter:
    def convert(node: Node) -> Expr:
        x, axes = node.input(0), node.attr_or_input("axes", 1) or ()
        if not axes and not node.attr("noop_with_empty_axes", 0):
            axes = tuple(range(node.rank(x)))
        over = tuple(sorted(set(node.axes(axes, node.rank(x)))))
        return reduce(node, x, over, bool(node.attr("keepdims", 1)))

    return convert


for _op_type, _reduce in REDUCTIONS.items():
    register(_op_type, _reduction(_reduce))


@converter("ArgMax", "ArgMin")
def index_of_extreme(node: Node) -> Expr:
    x = node.input(0)
    return node.op(
        node.proto.op_type.lower(),
        x,
        axis=node.axis(node.attr("axis", 0), node.rank(x)),
        keepdims=bool(node.attr("keepdims", 1)),
        select_last_index=bool(node.attr("select_last_index", 0)),
    )
