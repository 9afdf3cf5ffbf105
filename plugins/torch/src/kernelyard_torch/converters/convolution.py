"""Convolution and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr
from kernelyard_torch.converters.pooling import per_axis
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten.convolution.default")
def convolution(
    node: Node,
    x: Expr,
    weight: Expr,
    bias: Expr | None,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Expr:
    rank = node.rank(weight) - 2
    dtype = node.dtype(x)
    if not is_float(dtype):
        x, weight = node.cast(x, "float64"), node.cast(weight, "float64")
    pads = per_axis(padding, rank)
    attrs = {"strides": per_axis(strides, rank), "dilation": per_axis(dilation, rank), "padding": (*pads, *pads)}
    name = f"nn.conv{rank}d"
    if transposed:
        name, attrs["output_padding"] = f"{name}_transpose", per_axis(output_padding, rank)
    result = node.cast(node.op(name, x, weight, groups=groups, **attrs), dtype)
    return result if bias is None else node.op("add", result, node.along(bias, 0, rank + 1))
