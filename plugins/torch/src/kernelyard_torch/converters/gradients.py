"""Backward operators of core ATen, as ordinary operators on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.plugins.api import Expr
from kernelyard_torch.converters.pooling import mean_matrix, per_axis
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(node: Node, gradient: Expr, x: Expr) -> Expr:
    sizes, parts = _planes(node, x), _planes(node, gradient)
    return _spread(node, gradient, [mean_matrix(size, part) for size, part in zip(sizes, parts, strict=True)])


@converter("aten.avg_pool2d_backward.default")
def avg_pool2d_backward(
    node: Node,
    gradient: Expr,
    x: Expr,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
) -> Expr:
    sizes, parts = _planes(node, x), _planes(node, gradient)
    kernels, steps, pads = (per_axis(each, 2) for each in (kernel, strides or kernel, padding))
    axes = zip(sizes, parts, kernels, steps, pads, strict=True)
    matrices = [_windows(*axis, count_include_pad) for axis in axes]
    if divisor is None:
        return _spread(node, gradient, matrices)
    inside = [(matrix != 0).astype(np.float64) for matrix in matrices]
    return _spread(node, gradient, [inside[0] / divisor, inside[1]])


def _planes(node: Node, x: Expr) -> tuple[int, ...]:
    return node.require_all_fixed(node.shape(x)[-2:], "the size of a plane")


def _windows(size: int, parts: int, kernel: int, stride: int, pad: int, padding_counts: bool) -> np.ndarray:
    """(parts, size): the weight of each element in the mean of each window."""
    matrix = np.zeros((parts, size))
    for row in range(parts):
        begin = row * stride - pad
        end = min(begin + kernel, size + pad)
        inside = slice(max(begin, 0), min(end, size))
        matrix[row, inside] = 1 / (end - begin if padding_counts else inside.stop - inside.start)
    return matrix


def _spread(node: Node, gradient: Expr, matrices: Sequence[np.ndarray]) -> Expr:
    """rows.T @ gradient @ columns: the gradient of a mean goes to what it is the mean of, by its weights."""
    dtype = node.dtype(gradient)
    rows, columns = (node.cast(node.expr(matrix, "float64"), dtype) for matrix in (matrices[0].T, matrices[1]))
    return node.op("matmul", node.op("matmul", rows, gradient), columns)


@converter("aten.convolution_backward.default")
def convolution_backward(
    node: Node,
    gradient: Expr,
    x: Expr,
    weight: Expr,
    bias_sizes: Sequence[int] | None,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> list[Expr | None]:
    rank = node.rank(weight) - 2
    attrs = {
        "strides": per_axis(strides, rank),
        "padding": per_axis(padding, rank) * 2,
        "dilation": per_axis(dilation, rank),
    }
    inner, outer = (gradient, x) if transposed else (x, gradient)
    over = (0, *range(2, rank + 2))
    return [
        _input_gradient(node, gradient, x, weight, attrs, groups, transposed) if wanted[0] else None,
        _weight_gradient(node, inner, outer, weight, attrs, groups) if wanted[1] else None,
        node.op("sum", gradient, axes=over) if wanted[2] else None,
    ]


def _input_gradient(
    node: Node,
    gradient: Expr,
    x: Expr,
    weight: Expr,
    attrs: dict[str, tuple[int, ...]],
    groups: int,
    transposed: bool,
) -> Expr:
    rank = node.rank(weight) - 2
    if transposed:
        return node.op(f"nn.conv{rank}d", gradient, weight, groups=groups, **attrs)
    rows = zip(
        node.require_all_fixed(node.shape(x)[2:], "a size of the input"),
        node.require_all_fixed(node.shape(gradient)[2:], "a size of the gradient"),
        node.require_all_fixed(node.shape(weight)[2:], "a size of the kernel"),
        *(attrs["strides"], attrs["padding"], attrs["dilation"]),
        strict=False,
    )
    missing = tuple(
        size - ((out - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1)
        for size, out, kernel, stride, pad, dilation in rows
    )
    return node.op(f"nn.conv{rank}d_transpose", gradient, weight, groups=groups, output_padding=missing, **attrs)


def _weight_gradient(
    node: Node, inner: Expr, outer: Expr, weight: Expr, attrs: dict[str, tuple[int, ...]], groups: int
) -> Expr:
    """Return the convolution of one side with the other, where examples take the place of channels."""
    rank = node.rank(weight) - 2
    batch, channels, *planes = node.shape(inner)
    part = node.require_fixed(channels, "the number of channels") // groups
    spatial = list(range(3, rank + 3))
    grouped = node.permute(node.reshape(inner, (batch, groups, part, *planes)), [2, 1, 0, *spatial])
    data = node.reshape(grouped, (part, groups * batch, *planes))
    permuted = node.permute(outer, [1, 0, *range(2, rank + 2)])
    result = node.op(
        f"nn.conv{rank}d",
        *(data, permuted),
        groups=groups,
        strides=attrs["dilation"],
        dilation=attrs["strides"],
        padding=attrs["padding"],
    )
    for axis in range(2, rank + 2):
        result = node.slice(result, axis, 0, node.shape(weight)[axis])
    return node.permute(result, [1, 0, *range(2, rank + 2)])
