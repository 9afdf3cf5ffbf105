"""Affine quantization as the export of PyTorch 2 (pt2e) writes it: the operators of `quantized_decomposed`."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

Number: TypeAlias = "Expr | float"


def _names(name: str) -> tuple[str, ...]:
    return tuple(f"quantized_decomposed.{name}.{overload}" for overload in ("default", "tensor", "tensor2"))


@converter(*_names("quantize_per_tensor"))
def quantize_per_tensor(
    node: Node, x: Expr, scale: Number, zero: Number, low: Number, high: Number, dtype: str
) -> Expr:
    return _quantize(node, x, _parameters(node, scale, zero, dtype), None, (low, high), dtype)


@converter(*_names("dequantize_per_tensor"))
def dequantize_per_tensor(
    node: Node, x: Expr, scale: Number, zero: Number, low: Number, high: Number, dtype: str, out_dtype: str | None
) -> Expr:
    return _dequantize(node, x, _parameters(node, scale, zero, dtype), None, out_dtype)


@converter("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    node: Node, x: Expr, scales: Expr, zeros: Expr, axis: int, low: int, high: int, dtype: str
) -> Expr:
    parameters = _parameters(node, scales, zeros, dtype)
    return _quantize(node, x, parameters, node.axis(axis, node.rank(x)), (low, high), dtype)


@converter("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    node: Node,
    x: Expr,
    scales: Expr,
    zeros: Expr | None,
    axis: int,
    low: int,
    high: int,
    dtype: str,
    out_dtype: str | None,
) -> Expr:
    parameters = _parameters(node, scales, 0 if zeros is None else zeros, dtype)
    return _dequantize(node, x, parameters, node.axis(axis, node.rank(x)), out_dtype)


def _parameters(node: Node, scale: Number, zero: Number, dtype: str) -> tuple[Expr, Expr]:
    """Scale in float32 and zero point in the stored dtype: vectors, or numbers, which may be vectors of one."""
    given = [node.cast(node.expr(each, to), to) for each, to in ((scale, "float32"), (zero, dtype))]
    scale, zero = (node.reshape(each, ()) if node.shape(each) == (1,) else each for each in given)
    return scale, zero


def _quantize(
    node: Node, x: Expr, parameters: tuple[Expr, Expr], axis: int | None, limits: tuple[Number, Number], dtype: str
) -> Expr:
    """Return stored numbers, cut to limits that may be narrower than the dtype."""
    stored = node.op("quantize", x, *parameters, axis=_axis_of(node, parameters, axis), dtype=dtype)
    low, high = (node.reject("its limits are no constants") if isinstance(each, Expr) else each for each in limits)
    whole = np.iinfo(to_numpy(dtype))
    if low <= whole.min and high >= whole.max:
        return stored
    return node.op("clip", stored, min=float(low), max=float(high))


def _dequantize(node: Node, x: Expr, parameters: tuple[Expr, Expr], axis: int | None, out_dtype: str | None) -> Expr:
    dtype = out_dtype or "float32"
    return node.op("dequantize", x, *parameters, axis=_axis_of(node, parameters, axis), dtype=dtype)


def _axis_of(node: Node, parameters: tuple[Expr, Expr], axis: int | None) -> int | None:
    return axis if any(node.rank(parameter) for parameter in parameters) else None
