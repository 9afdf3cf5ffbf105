"""Quantized layers as engines look for them: a bias in the node of its product, 4-bit weights in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernelyard.plugins.api import Call, Constant, Expr, Function, Var, operands
from kernelyard_onnx_export.graph_writer import INT4, WIDER_OPSET, GraphWriter
from kernelyard_onnx_export.registry import CONVERTERS

_WITH_BIAS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_INT32 = 2**31 - 1
_EXACT = 2.0**-20  # of a bias that is a multiple of its unit, computed in another order


@dataclass(frozen=True)
class Biases:
    """products: by the variable of a sum, its convolution and its bias. absorbed: convolutions that only sums read."""

    products: Mapping[Expr, tuple[Call, np.ndarray]]
    absorbed: frozenset[Var]


def fused_biases(function: Function) -> Biases:
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


def blocked_weight(writer: GraphWriter, call: Call) -> str | None:
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
