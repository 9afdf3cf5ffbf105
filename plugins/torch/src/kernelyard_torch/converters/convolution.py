"""Convolution and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.dtypes import is_float
from kernelyard.ir import Expr
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
    pads = list(_each(padding, rank))
    attrs = {"strides": _each(strides, rank), "dilation": _each(dilation, rank), "padding": (*pads, *pads)}
    name = f"nn.conv{rank}d"
    if transposed:
        name, attrs["output_padding"] = f"{name}_transpose", _each(output_padding, rank)
    result = node.cast(node.op(name, x, weight, groups=groups, **attrs), dtype)
    if bias is None:
        return result
    return node.op("add", result, node.reshape(bias, (node.shape(bias)[0], *(1,) * rank)))


def _each(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for every spatial axis."""
    return tuple(values) if len(values) == rank else tuple(values) * rank
