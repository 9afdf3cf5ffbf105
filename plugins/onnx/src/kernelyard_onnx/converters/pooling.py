"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.convolution import spatial_rank
from kernelyard_onnx.converters.vision import argmax_indices
from kernelyard_onnx.converters.windows import Window, pad_explicitly, read_window
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


def _window(node: Node, x: Expr) -> Window:
    spatial = node.shape(x)[2:]
    window = read_window(node, spatial, tuple(node.require_attr("kernel_shape")))
    return window if node.attr("ceil_mode", 0) else _with_one_position(window, spatial)


def _with_one_position(window: Window, spatial: Sequence[Dim]) -> Window:
    """Return a window that is larger than its input by less than a stride with padding behind: it has one position.

    So it is in onnxruntime and in the standard's shape inference, whose division rounds towards zero. Where it rounds
    up (ceil_mode), there is such a position without padding, and averages do not count what lies behind the input.
    """
    rank, padding = len(spatial), list(window.padding)
    for axis, (size, reach, stride) in enumerate(zip(spatial, window.reach, window.strides, strict=True)):
        missing = reach - size - padding[axis] - padding[rank + axis]
        if isinstance(missing, int) and 0 < missing < stride:
            padding[rank + axis] += missing
    return replace(window, padding=tuple(padding))


def _with_last_position(window: Window, spatial: Sequence[Dim]) -> Window:
    """Return a window with padding behind as far as its last position reaches where their number is rounded up
    (ceil_mode): a sum has zeros there, which averages do not count. No position begins behind the input."""
    rank, padding = len(spatial), list(window.padding)
    for axis, (size, reach, stride) in enumerate(zip(spatial, window.reach, window.strides, strict=True)):
        padded = size + padding[axis]
        behind = padding[rank + axis]
        last = dims.minimum(dims.ceildiv(padded + behind - reach, stride), dims.ceildiv(padded, stride) - 1)
        padding[rank + axis] = dims.maximum(behind, last * stride + reach - padded)
    return replace(window, padding=tuple(padding))


def _pool(node: Node, kind: str, x: Expr, window: Window, **attrs: bool) -> Expr:
    return node.op(
        f"nn.{kind}_pool{spatial_rank(node, x)}d",
        x,
        pool_size=window.kernel,
        strides=window.strides,
        padding=window.static_padding,
        dilation=window.dilation,
        ceil_mode=bool(node.attr("ceil_mode", 0)),
        **attrs,
    )


@converter("MaxPool")
def max_pool(node: Node) -> Sequence[Expr]:
    pooled = _max_pool(node, node.input(0))
    return [pooled, argmax_indices(node, node.input(0), pooled)] if node.has_output(1) else [pooled]


def _max_pool(node: Node, x: Expr) -> Expr:
    window = _window(node, x)
    if window.static_padding is None:
        x, window = pad_explicitly(node, x, window, float(node.neutral("max", node.dtype(x))))
    return _pool(node, "max", x, window)


@converter("AveragePool")
def average_pool(node: Node) -> Expr:
    x = node.input(0)
    return _average(node, x, _window(node, x), bool(node.attr("count_include_pad", 0)))


def _average(node: Node, x: Expr, window: Window, count_padding: bool) -> Expr:
    if window.static_padding is not None:
        return _pool(node, "avg", x, window, count_include_pad=count_padding)
    padded, inner = pad_explicitly(node, x, window, 0.0)
    total = _pool(node, "avg", padded, inner, count_include_pad=True)
    if count_padding:
        return total
    # The mean over the elements that are there: both sums are divided by the window's size, which cancels.
    ones, _ = pad_explicitly(node, node.full(1, (1, 1, *node.shape(x)[2:]), node.dtype(x)), window, 0.0)
    return node.op("divide", total, _pool(node, "avg", ones, inner, count_include_pad=True))


@converter("LpPool")
def lp_pool(node: Node) -> Expr:
    x, p = node.input(0), node.attr("p", 2)
    window = _window(node, x)
    if node.attr("ceil_mode", 0):
        window = _with_last_position(window, node.shape(x)[2:])
    powers = _power(node, node.op("abs", x), p)
    mean = _average(node, powers, window, True)
    return _power(node, node.op("multiply", mean, math.prod(window.kernel)), 1 / p)


def _power(node: Node, x: Expr, exponent: float) -> Expr:
    special = {1: lambda: x, 2: lambda: node.op("multiply", x, x), 0.5: lambda: node.op("sqrt", x)}
    return special[exponent]() if exponent in special else node.op("power", x, exponent)


@converter("GlobalAveragePool")
def global_average_pool(node: Node) -> Expr:
    x = node.input(0)
    return node.op("mean", x, axes=tuple(range(2, node.rank(x))), keepdims=True)


@converter("GlobalMaxPool")
def global_max_pool(node: Node) -> Expr:
    x = node.input(0)
    return node.op("max", x, axes=tuple(range(2, node.rank(x))), keepdims=True)


@converter("GlobalLpPool")
def global_lp_pool(node: Node) -> Expr:
    x, p = node.input(0), node.attr("p", 2)
    total = node.op("sum", _power(node, node.op("abs", x), p), axes=tuple(range(2, node.rank(x))), keepdims=True)
    return _power(node, total, 1 / p)
