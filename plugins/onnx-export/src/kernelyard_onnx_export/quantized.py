"""Quantized layers as engines look for them: linear quantization, a bias in its product, 4-bit weights in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Call, Constant, Expr, Function, TensorType, Var, operands
from kernelyard_onnx_export.graph_writer import INT4, WIDER_OPSET, GraphWriter
from kernelyard_onnx_export.registry import CONVERTERS, converter

_WITH_BIAS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_INT32 = 2**31 - 1
_EXACT = 2.0**-20  # of a bias that is a multiple of its unit, computed in another order


# --- linear quantization ----------------------------------------------------------------------------------------------
@converter("quantize")
def _quantize(writer: GraphWriter, call: Call) -> str:
    x, scale, zero = call.args
    if not _is_in_range(zero, call.attrs["dtype"]):
        return _quantize_in_steps(writer, call)
    scale, zero = _as_scalar(scale), _as_scalar(zero)
    zero_name = _zero_point(writer, zero, call.attrs["dtype"])
    name, dtype = writer.name(x), scale.tensor_type.dtype
    name = name if x.tensor_type.dtype == dtype else writer.cast(name, dtype)
    return writer.node("QuantizeLinear", name, writer.name(scale), zero_name, axis=call.attrs["axis"])


@converter("dequantize")
def _dequantize(writer: GraphWriter, call: Call) -> str:
    x, scale, zero = call.args
    axis, dtype = call.attrs["axis"], call.attrs["dtype"]
    if not _is_in_range(zero, x.tensor_type.dtype):
        return _dequantize_in_steps(writer, call)
    scale, zero = _as_scalar(scale), _as_scalar(zero)
    zero_name = _zero_point(writer, zero, x.tensor_type.dtype, like=scale.tensor_type)
    real = writer.node("DequantizeLinear", writer.name(x), writer.name(scale), zero_name, axis=axis)
    return real if dtype == scale.tensor_type.dtype else writer.cast(real, dtype)


def _as_scalar(parameter: Expr) -> Expr:
    """Return a parameter; a vector of one number as the number, as quantized forms of engines have it."""
    if isinstance(parameter, Constant) and parameter.data.shape == (1,):
        return Constant(parameter.data.reshape(()))
    return parameter


def _is_in_range(zero: Expr, dtype: str) -> bool:
    """Return True where the stored dtype, which the standard's zero points have, surely holds a zero point."""
    limits, own = np.iinfo(to_numpy(dtype)), np.iinfo(to_numpy(zero.tensor_type.dtype))
    if isinstance(zero, Constant):
        return bool((zero.data >= limits.min).all() and (zero.data <= limits.max).all())
    return limits.min <= own.min and own.max <= limits.max


def _quantize_in_steps(writer: GraphWriter, call: Call) -> str:
    x, scale, zero = call.args
    limits = np.iinfo(to_numpy(call.attrs["dtype"]))
    scaled = writer.node("Div", writer.cast(writer.name(x), "float32"), _parameter(writer, call, scale, "float32"))
    whole = writer.cast(writer.node("Round", scaled), "float64")
    shifted = writer.node("Add", whole, _parameter(writer, call, zero, "float64"))
    ends = (writer.number(end, "float64") for end in (limits.min, limits.max))
    return writer.cast(writer.node("Clip", shifted, *ends), call.attrs["dtype"])


def _dequantize_in_steps(writer: GraphWriter, call: Call) -> str:
    x, scale, zero = call.args
    whole = writer.node("Sub", writer.cast(writer.name(x), "int64"), _parameter(writer, call, zero, "int64"))
    real = writer.node("Mul", writer.cast(whole, "float32"), _parameter(writer, call, scale, "float32"))
    return writer.cast(real, call.attrs["dtype"])


def _parameter(writer: GraphWriter, call: Call, parameter: Expr, dtype: str) -> str:
    """Return a scale or zero point in a dtype, along the axis of the call."""
    name = writer.cast(writer.name(parameter), dtype)
    if not parameter.tensor_type.rank:
        return name
    sizes = [-1 if n == call.attrs["axis"] else 1 for n in range(call.args[0].tensor_type.rank)]
    return writer.node("Reshape", name, writer.integers(sizes))


def _zero_point(writer: GraphWriter, zero: Expr, dtype: str, like: TensorType | None = None) -> str:
    """Return a zero point in the stored dtype, and of the shape of the scale, as the standard has it."""
    if dtype not in ("int8", "uint8", "int32"):
        writer.opset = WIDER_OPSET
    if isinstance(zero, Constant) and (like is None or like.is_static):
        shape = zero.data.shape if like is None else like.shape
        return writer.constant(np.broadcast_to(zero.data, shape).astype(to_numpy(dtype)))  # pyright: ignore
    name = writer.name(zero) if zero.tensor_type.dtype == dtype else writer.cast(writer.name(zero), dtype)
    if like is None or like.rank == zero.tensor_type.rank:
        return name
    return writer.node("Expand", name, writer.shape(like.shape))


# --- biases of products -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Biases:
    """products: by the variable of a sum, its convolution and its bias. absorbed: convolutions that only sums read."""

    products: Mapping[Expr, tuple[Call, np.ndarray]]
    absorbed: frozenset[Var]


def find_fused_biases(function: Function) -> Biases:
    """Return the sums of a convolution that nothing else reads and a constant for each channel."""
    values = {binding.var: binding.value for binding in function.bindings}
    readers = Counter(arg for value in values.values() for arg in operands(value))
    readers.update(operands(function.result))
    products: dict[Expr, tuple[Call, np.ndarray]] = {}
    absorbed: set[Var] = set()
    for var, value in values.items():
        if not isinstance(value, Call) or value.op_name != "add":
            continue
        for product, bias in (value.args, value.args[::-1]):
            call = values.get(product) if isinstance(product, Var) else None
            if not isinstance(call, Call) or call.op_name not in _WITH_BIAS or readers[product] != 1:
                continue
            if isinstance(bias, Constant) and value.type == call.type and _is_by_channel(bias.data, call):
                products[var] = call, bias.data.reshape(-1)
                absorbed.add(product)  # pyright: ignore[reportArgumentType]
                break
    return Biases(products, frozenset(absorbed))


def _is_by_channel(bias: np.ndarray, call: Call) -> bool:
    rank, channels = call.tensor_type.rank, call.tensor_type.shape[1]
    shape = (1,) * (rank - bias.ndim) + bias.shape
    return shape == (1, channels, *(1,) * (rank - 2))


def with_bias(writer: GraphWriter, call: Call, bias: np.ndarray) -> str:
    """Write a convolution with its bias; of dequantized operands with a bias in int32, where that is the same."""
    unit = _unit(writer, call)
    name = writer.constant(bias)
    if unit is not None:
        with np.errstate(all="ignore"):  # of a unit close to 0 there is no int32
            codes = np.rint(bias / unit)
        if bool((np.abs(codes) <= _INT32).all()) and np.allclose(codes * unit, bias, rtol=_EXACT, atol=0):
            stored = writer.constant(codes.astype(np.int32))
            zeros = writer.constant(np.zeros(unit.shape, np.int32))
            name = writer.node("DequantizeLinear", stored, writer.constant(unit), zeros, axis=0 if unit.ndim else None)
    found = CONVERTERS[call.op_name](writer, call)
    assert isinstance(found, str)
    writer.nodes[-1].input.append(name)
    return found


def _unit(writer: GraphWriter, call: Call) -> np.ndarray | None:
    """Return the scale of the sums of a product of two dequantized operands, where it is known."""
    scales: list[np.ndarray] = []
    for operand in call.args:
        dequantize = writer.call_of(operand, "dequantize")
        if dequantize is None or not isinstance(dequantize.args[1], Constant):
            return None
        scales.append(dequantize.args[1].data)
    data, weight = scales
    return (data * weight).astype(np.float32) if data.size == 1 and np.broadcast(data, weight).size else None


# --- 4-bit weights ----------------------------------------------------------------------------------------------------
def write_blocked_weight(writer: GraphWriter, call: Call) -> str | None:
    """Write 4-bit integers in blocks, that a product with the scales restores, as one DequantizeLinear."""
    real = writer.call_of(call.args[0], "multiply") if call.op_name == "reshape" else None
    wide = writer.call_of(real.args[0], "astype") if real is not None else None
    if real is None or wide is None:
        return None
    codes, scales = wide.args[0], real.args[1]
    if not isinstance(codes, Constant) or not isinstance(scales, Constant) or codes.data.dtype != np.int8:
        return None
    shape, spread = codes.data.shape, scales.data.shape
    is_blocked = len(shape) == 3 and spread == (shape[0], 1, shape[2])
    fits = is_blocked and call.attrs["shape"] == (shape[0] * shape[1], shape[2])
    if not fits or codes.data.min(initial=0) < -8 or codes.data.max(initial=0) > 7:
        return None
    writer.opset = WIDER_OPSET
    stored = writer.constant(codes.data.reshape(-1, shape[2]), INT4)
    unit = writer.constant(scales.data.reshape(shape[0], shape[2]))
    return writer.node("DequantizeLinear", stored, unit, axis=0, block_size=shape[1])
