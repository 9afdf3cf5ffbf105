"""Quantized tensors: real = (stored - zero point) * scale."""

from __future__ import annotations

import numpy as np

from kernelyard import dims
from kernelyard.dtypes import QUANTIZED, is_float, to_numpy
from kernelyard.errors import TypeInferenceError
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.convolution import convolve
from kernelyard_onnx.converters.elementwise import convert_to, narrow
from kernelyard_onnx.element_types import NARROW
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter
from kernelyard_onnx.tensors import DTYPES

STORED = (*QUANTIZED, "float8_e4m3fn", "float8_e5m2")


@converter("QuantizeLinear", since=10)
def quantize_linear(node: Node) -> Expr:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    stated = DTYPES.get(node.attr("output_dtype", 0))
    dtype = node.dtype(zero) if zero is not None else stated or "uint8"
    data_type = node.attr("output_dtype", 0) if zero is None else node.importer.element_types.get(zero, 0)
    if stated is not None or (dtype not in STORED and data_type not in NARROW):
        _require_zero_point(node, zero, stated or " or ".join(STORED))
    x = x if is_float(node.dtype(x)) else node.cast(x, "float32")
    if data_type not in NARROW and dtype in QUANTIZED and not node.attr("block_size", 0):
        return quantize(node, x, scale, zero, dtype, _read_axis(node, x))
    scaled = node.op("divide", x, _spread(node, node.cast(scale, node.dtype(x)), x))
    if data_type in NARROW:
        return _quantize_narrow(node, scaled, zero, x, data_type)
    return _round(node, scaled, None if zero is None else _spread(node, zero, x), dtype)


def quantize(node: Node, x: Expr, scale: Expr, zero: Expr | None, dtype: str, axis: int | None = None) -> Expr:
    """Real numbers -> stored numbers; scale and zero point of one number, or of one per index of `axis`."""
    parameters = _parameters(node, scale, zero, dtype)
    return node.op("quantize", x, *parameters, axis=_axis_of(node, parameters, axis), dtype=dtype)


def dequantize(node: Node, x: Expr, scale: Expr, zero: Expr | None, axis: int | None = None) -> Expr:
    """Dequantize stored numbers to the dtype of the scale; see `quantize`."""
    parameters = _parameters(node, scale, zero, node.dtype(x))
    attrs = {"axis": _axis_of(node, parameters, axis), "dtype": node.dtype(scale)}
    return node.op("dequantize", node.wide(x), *parameters, **attrs)


def _parameters(node: Node, scale: Expr, zero: Expr | None, dtype: str) -> tuple[Expr, Expr]:
    """Scale and zero point as numbers, or as vectors where they have several; no zero point is 0."""
    _require_zero_point(node, zero, dtype)
    zero = node.full(0, (), dtype) if zero is None else node.wide(zero)
    sizes = [dims.product(node.shape(parameter)) for parameter in (scale, zero)]
    scale, zero = (node.reshape(x, () if n == 1 else (n,)) for x, n in zip((scale, zero), sizes, strict=True))
    return scale, zero


def _require_zero_point(node: Node, zero: Expr | None, dtype: str) -> None:
    """Require that a zero point has the element type of the stored numbers. Raises: TypeInferenceError."""
    if zero is not None and node.dtype(zero) != dtype:
        raise TypeInferenceError(
            "the zero point has another element type than the stored numbers",
            found=node.dtype(zero),
            expected=dtype,
        )


def _axis_of(node: Node, parameters: tuple[Expr, Expr], axis: int | None) -> int | None:
    return axis if any(node.rank(parameter) for parameter in parameters) else None


def _read_axis(node: Node, x: Expr) -> int | None:
    """Return the axis of vectors of parameters; of numbers it means nothing, and may be out of range."""
    axis, rank = int(node.attr("axis", 1)), node.rank(x)
    return axis % rank if -rank <= axis < rank else None


def _quantize_narrow(node: Node, scaled: Expr, zero: Expr | None, x: Expr, data_type: int) -> Expr:
    """Quantize to element types that another type carries; see `quantize`."""
    if not is_float(NARROW[data_type][0]):
        scaled = node.op("round", scaled)
        if zero is not None:
            scaled = node.op("add", scaled, node.cast(_spread(node, zero, x), node.dtype(scaled)))
    return node.mark_narrow(narrow(node, scaled, data_type), data_type)


def _round(node: Node, scaled: Expr, zero: Expr | None, dtype: str) -> Expr:
    """Return stored numbers for numbers in units of the scale: rounded to even, shifted, clamped to the dtype."""
    if is_float(dtype):
        return convert_to(node, scaled, dtype)
    rounded = node.op("round", scaled)
    if zero is not None:
        rounded = node.op("add", rounded, node.cast(zero, node.dtype(scaled)))
    limits = np.iinfo(to_numpy(dtype))
    return node.cast(node.op("clip", rounded, min=float(limits.min), max=float(limits.max)), dtype)


@converter("DequantizeLinear", since=10)
def dequantize_linear(node: Node) -> Expr:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    stated = DTYPES.get(node.attr("output_dtype", 0))
    if node.dtype(x) in QUANTIZED and not node.attr("block_size", 0):
        real = dequantize(node, x, scale, zero, _read_axis(node, x))
        return node.cast(real, stated or node.dtype(scale))
    _require_zero_point(node, zero, node.dtype(x))
    # int32 does not fit float32 exactly: the difference is taken before the conversion.
    whole = x if is_float(node.dtype(x)) else node.cast(x, "int32")
    if zero is not None and not is_float(node.dtype(zero)):
        whole = node.op("subtract", whole, node.cast(_spread(node, zero, x), node.dtype(whole)))
    result = node.op("multiply", node.cast(whole, "float32"), _spread(node, node.cast(scale, "float32"), x))
    return node.cast(result, stated or node.dtype(scale))


def _spread(node: Node, parameter: Expr, x: Expr) -> Expr:
    """Return a scale or zero point laid out to broadcast with `x`: one number, one per axis index, or one per block."""
    block = node.attr("block_size", 0)
    if node.rank(parameter) == 0 or (dims.product(node.shape(parameter)) == 1 and not block):
        return node.reshape(parameter, ())
    axis = node.axis(node.attr("axis", 1), node.rank(x))
    if not block:
        return node.along(parameter, axis, node.rank(x))
    shape = list(node.shape(parameter))
    blocks = shape[axis]
    repeated = node.broadcast_to(
        node.reshape(parameter, (*shape[: axis + 1], 1, *shape[axis + 1 :])),
        (*shape[: axis + 1], block, *shape[axis + 1 :]),
    )
    shape[axis] = blocks * block
    whole, size = node.reshape(repeated, shape), node.shape(x)[axis]
    return whole if shape[axis] == size else node.slice(whole, axis, 0, size)


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node) -> list[Expr]:
    return list(quantize_dynamically(node))


def quantize_dynamically(node: Node) -> tuple[Expr, Expr, Expr]:
    """Return stored numbers, scale and zero point, from the range of the data, which is made to contain 0."""
    x = node.input(0)
    every = tuple(range(node.rank(x)))
    low = node.op("minimum", node.op("min", x, axes=every, keepdims=False), 0)
    high = node.op("maximum", node.op("max", x, axes=every, keepdims=False), 0)
    scale = node.op("divide", node.op("subtract", high, low), 255)
    # All zeros: any scale will do, but not 0.
    safe = node.op("where", node.op("equal", scale, 0), node.full(1, (), "float32"), scale)
    zero = quantize(node, node.op("negative", low), safe, None, "uint8")
    return quantize(node, x, safe, zero, "uint8"), scale, zero


@converter("QLinearMatMul", since=10)
def quantized_matrix_product(node: Node) -> Expr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.require_inputs()
    left = dequantize(node, a, a_scale, a_zero, node.rank(a) - 2)
    right = dequantize(node, b, b_scale, b_zero, node.rank(b) - 1)
    total = node.cast(node.op("matmul", left, right), "float32")
    return quantize(node, total, y_scale, y_zero, node.dtype(y_zero))


@converter("QLinearConv", since=10)
def quantized_convolution(node: Node) -> Expr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(index) for index in range(8))
    data, weight = dequantize(node, x, x_scale, x_zero), dequantize(node, w, w_scale, w_zero, 0)
    total = convolve(node, data, weight, _bias_in_units_of(node, node.optional(8), x_scale, w_scale))
    return quantize(node, total, y_scale, y_zero, node.dtype(y_zero))


def _bias_in_units_of(node: Node, bias: Expr | None, *scales: Expr) -> Expr | None:
    """Return the real numbers of a vector that is stored in units of the product of scales."""
    if bias is None:
        return None
    unit = node.broadcast("multiply", *(_parameters(node, scale, None, "int32")[0] for scale in scales))
    return dequantize(node, bias, unit, None, 0)
