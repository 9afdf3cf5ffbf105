"""Softmax, and normalisation by statistics of the data or by given ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_torch.converters.reduction import variance
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten._softmax.default", "aten.softmax.int")
def softmax(node: Node, x: Expr, axis: int, *_: object) -> Expr:
    return _broadcast_along(node, "nn.softmax", x, axis)


@converter("aten._log_softmax.default", "aten.log_softmax.int")
def log_softmax(node: Node, x: Expr, axis: int, *_: object) -> Expr:
    return _broadcast_along(node, "nn.log_softmax", x, axis)


@converter("aten._safe_softmax.default")
def safe_softmax(node: Node, x: Expr, axis: int, *_: object) -> Expr:
    """Compute softmax where rows that are all minus infinity give zeros."""
    x = node.cast(x, node.result.dtype)
    at = node.axis(axis, node.rank(x))
    nothing = node.op("equal", node.op("max", x, axes=(at,), keepdims=True), -float("inf"))
    return node.op("where", nothing, node.full(0, (), node.dtype(x)), _broadcast_along(node, "nn.softmax", x, axis))


def _broadcast_along(node: Node, name: str, x: Expr, axis: int) -> Expr:
    x = node.cast(x, node.result.dtype)
    if 0 in node.shape(x):
        return x
    if not node.rank(x):
        return node.reshape(node.op(name, node.reshape(x, (1,)), axis=0), ())
    return node.op(name, x, axis=node.axis(axis, node.rank(x)))


@converter("aten.layer_norm.default")
def layer_norm(
    node: Node, x: Expr, over: Sequence[Dim], weight: Expr | None, bias: Expr | None, epsilon: float, *_: object
) -> Expr:
    axes = tuple(range(node.rank(x) - len(over), node.rank(x)))
    return node.op("nn.layer_norm", x, *_affine(node, x, over, weight, bias), axes=axes, epsilon=float(epsilon))


@converter("aten.native_layer_norm.default")
def native_layer_norm(
    node: Node, x: Expr, over: Sequence[Dim], weight: Expr | None, bias: Expr | None, epsilon: float
) -> list[Expr | None]:
    axes = list(range(node.rank(x) - len(over), node.rank(x)))
    center, scale = _statistics(node, x, axes, epsilon)
    return [layer_norm(node, x, over, weight, bias, epsilon), center, scale]


def _statistics(node: Node, x: Expr, axes: Sequence[int], epsilon: float) -> tuple[Expr | None, Expr | None]:
    """Return the mean and one over the deviation, where something reads them."""
    if not node.is_used(1) and not node.is_used(2):
        return None, None
    spread = node.op("add", variance(node, x, axes, 0, True), float(epsilon))
    return node.op("mean", x, axes=tuple(axes), keepdims=True), node.op("rsqrt", spread)


def _affine(node: Node, x: Expr, shape: Sequence[Dim], weight: Expr | None, bias: Expr | None) -> tuple[Expr, Expr]:
    dtype = node.dtype(x)
    return (
        node.full(1, shape, dtype) if weight is None else node.cast(weight, dtype),
        node.full(0, shape, dtype) if bias is None else node.cast(bias, dtype),
    )


@converter("aten.rms_norm.default")
def rms_norm(node: Node, x: Expr, over: Sequence[Dim], weight: Expr | None, epsilon: float | None) -> Expr:
    meta: torch.Tensor = node.fx_node.meta["val"]
    axes = tuple(range(node.rank(x) - len(over), node.rank(x)))
    gamma, _ = _affine(node, x, over, weight, None)
    smallest = torch.finfo(meta.dtype).eps if epsilon is None else epsilon
    return node.op("nn.rms_norm", x, gamma, axes=axes, epsilon=float(smallest))


@converter("aten.native_group_norm.default")
def native_group_norm(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    batch: Dim,
    channels: Dim,
    rest: Dim,
    groups: int,
    epsilon: float,
) -> list[Expr | None]:
    affine = _affine(node, x, (channels,), weight, bias)
    grouped = node.reshape(x, (batch, groups, dims.floordiv(channels, groups) * rest))
    center, scale = _statistics(node, grouped, [2], epsilon)
    result = node.op("nn.group_norm", x, *affine, num_groups=groups, epsilon=float(epsilon))
    flat = [None if each is None else node.reshape(each, (batch, groups)) for each in (center, scale)]
    return [result, *flat]


@converter("aten.group_norm.default")
def group_norm(
    node: Node, x: Expr, groups: int, weight: Expr | None, bias: Expr | None, epsilon: float, *_: object
) -> Expr:
    affine = _affine(node, x, (node.shape(x)[1],), weight, bias)
    return node.op("nn.group_norm", x, *affine, num_groups=groups, epsilon=float(epsilon))


@converter("aten._native_batch_norm_legit_no_training.default")
def batch_norm(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr,
    spread: Expr,
    momentum: float,
    epsilon: float,
) -> list[Expr]:
    gamma, beta = _affine(node, x, node.shape(mean), weight, bias)
    mean, spread = node.cast(mean, node.dtype(x)), node.cast(spread, node.dtype(x))
    result = node.op("nn.batch_norm", x, gamma, beta, mean, spread, epsilon=float(epsilon), axis=1)
    nothing = node.full(0, (0,), node.dtype(x))
    return [result, nothing, nothing]


@converter("aten._native_batch_norm_legit.no_stats")
def batch_norm_of_data(
    node: Node, x: Expr, weight: Expr | None, bias: Expr | None, training: bool, momentum: float, epsilon: float
) -> list[Expr]:
    center, spread = _batch_statistics(node, x)
    return [
        batch_norm(node, x, weight, bias, center, spread, momentum, epsilon)[0],
        center,
        node.op("rsqrt", node.op("add", spread, float(epsilon))),
    ]


def _batch_statistics(node: Node, x: Expr) -> tuple[Expr, Expr]:
    """Return the mean and the variance of each channel."""
    over = [axis for axis in range(node.rank(x)) if axis != 1]
    return node.op("mean", x, axes=tuple(over)), variance(node, x, over, 0, False)


@converter("aten._native_batch_norm_legit_functional.default")
def batch_norm_with_new_statistics(
    node: Node,
    x: Expr,
    weight: Expr | None,
    bias: Expr | None,
    mean: Expr,
    spread: Expr,
    training: bool,
    momentum: float,
    epsilon: float,
) -> list[Expr]:
    """Normalize by the data's own statistics (training); the running ones come after the other results."""
    if not training:
        return [*batch_norm(node, x, weight, bias, mean, spread, momentum, epsilon), mean, spread]
    center, found = _batch_statistics(node, x)
    count = node.expr(dims.product(node.shape(x)[axis] for axis in range(node.rank(x)) if axis != 1), "float64")
    unbiased = node.op("divide", count, node.op("subtract", count, 1))
    news = (center, node.op("multiply", found, node.cast(unbiased, node.dtype(found))))
    moved = [_update_average(node, old, new, momentum) for old, new in zip((mean, spread), news, strict=True)]
    return [*batch_norm_of_data(node, x, weight, bias, training, momentum, epsilon), *moved]


def _update_average(node: Node, old: Expr, new: Expr, momentum: float) -> Expr:
    """Return a running average that has gone on."""
    new = node.cast(new, node.dtype(old))
    return node.op("add", node.op("multiply", old, 1 - momentum), node.op("multiply", new, momentum))
