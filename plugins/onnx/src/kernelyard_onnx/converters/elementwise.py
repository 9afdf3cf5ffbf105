"""Elementwise operators: arithmetic, comparisons, logic, casts."""

from __future__ import annotations

from functools import reduce

import ml_dtypes
import numpy as np
import onnx

from kernelyard.dtypes import is_float, is_integer, itemsize
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.random import uniform
from kernelyard_onnx.converters.text import write_numbers
from kernelyard_onnx.element_types import NARROW
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import Converter, converter, register
from kernelyard_onnx.tensors import DATA_TYPES, DTYPES, type_name
from kernelyard_onnx.values import StringTensor, Value

UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
# The largest finite numbers of the 8-bit floats.
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(name: str) -> Converter:
    return lambda node: node.op(name, node.input(0))


def _binary(name: str) -> Converter:
    return lambda node: node.broadcast(name, node.input(0), node.input(1))


def _binary_by_attribute(name: str) -> Converter:
    """Before opset 7 the second operand was broadcast along axes from the attribute `axis` on, and only on demand."""

    def convert(node: Node) -> Expr:
        x, y = node.input(0), node.input(1)
        return node.op(name, x, along_axes(node, y, node.rank(x)) if node.attr("broadcast", 0) else y)

    return convert


def along_axes(node: Node, y: Expr, rank: int) -> Expr:
    """Return an operand laid out along the axes of another from the attribute `axis` on."""
    first = node.attr("axis")
    behind = 0 if first is None else rank - first - node.rank(y)
    return node.reshape(y, (*node.shape(y), *(1,) * behind)) if behind > 0 else y


def _variadic(name: str) -> Converter:
    return lambda node: reduce(lambda a, b: node.broadcast(name, a, b), node.require_inputs())


for _op_type, _name in UNARY.items():
    register(_op_type, _unary(_name))
for _op_type, _name in BINARY.items():
    # Before opset 7, broadcasting was asked for with attributes.
    register(_op_type, _binary(_name), since=7)
    register(_op_type, _binary_by_attribute(_name))
for _op_type, _name in VARIADIC.items():
    register(_op_type, _variadic(_name))


@converter("Identity")
def identity(node: Node) -> Value:
    value = node.value(0)
    return node.reject("its input is missing") if value is None else value


@converter("Dropout")
def dropout_by_attribute(node: Node) -> list[Expr]:
    return [node.input(0)] if node.attr("is_test", 0) else node.reject("it is in training mode")


@converter("Dropout", since=7)
def dropout(node: Node) -> list[Expr]:
    x, ratio, training = node.input(0), node.optional(1), node.optional(2)
    if training is not None and bool(node.scalar(training, "training_mode")):
        return _drop(node, x, 0.5 if ratio is None else float(node.scalar(ratio, "ratio")))
    mask_dtype = "bool" if node.opset >= 10 else node.dtype(x)
    return [x, node.full(1, node.shape(x), mask_dtype)] if node.has_output(1) else [x]


def _drop(node: Node, x: Expr, ratio: float) -> list[Expr]:
    """Drop random elements, and scale the others up accordingly."""
    if ratio == 0:
        return [x, node.full(True, node.shape(x), "bool")]
    kept = node.op("greater_equal", uniform(node, node.shape(x), "float32"), ratio)
    return [node.op("multiply", node.op("multiply", x, node.cast(kept, node.dtype(x))), 1 / (1 - ratio)), kept]


@converter("Mean")
def mean(node: Node) -> Expr:
    inputs = node.require_inputs()
    total = reduce(lambda a, b: node.broadcast("add", a, b), inputs)
    return node.op("divide", total, len(inputs)) if len(inputs) > 1 else total


@converter("Pow")
def power_by_attribute(node: Node) -> Expr:
    x, y = node.input(0), node.input(1)
    return node.op("power", x, along_axes(node, y, node.rank(x)))


@converter("Pow", since=7)
def power(node: Node) -> Expr:
    base, exponent = node.input(0), node.input(1)
    dtype, other = node.dtype(base), node.dtype(exponent)
    if dtype == other:
        return node.broadcast("power", base, exponent)
    if is_float(dtype) or is_integer(other):
        return node.broadcast("power", base, node.cast(exponent, dtype))
    return node.cast(node.broadcast("power", node.cast(base, "float64"), node.cast(exponent, "float64")), dtype)


@converter("Mod", since=10)
def modulo(node: Node) -> Expr:
    return node.broadcast("fmod" if node.attr("fmod", 0) else "mod", node.input(0), node.input(1))


@converter("BitShift", since=11)
def bit_shift(node: Node) -> Expr:
    name = {"LEFT": "left_shift", "RIGHT": "right_shift"}.get(node.require_attr("direction"))
    return node.broadcast(name or node.reject("its direction is unknown"), node.input(0), node.input(1))


@converter("Where", since=9)
def where(node: Node) -> Expr:
    return node.broadcast("where", node.input(0), node.input(1), node.input(2))


@converter("IsInf", since=10)
def is_infinite(node: Node) -> Expr:
    x = node.input(0)
    positive, negative = bool(node.attr("detect_positive", 1)), bool(node.attr("detect_negative", 1))
    if positive and negative:
        return node.op("isinf", x)
    if not positive and not negative:
        return node.full(False, node.shape(x), "bool")
    side = node.op("greater" if positive else "less", x, 0)
    return node.op("logical_and", node.op("isinf", x), side)


@converter("Clip")
def clip_by_attributes(node: Node) -> Expr:
    bounds = {name: node.attr(name) for name in ("min", "max")}
    limit = float(np.finfo(np.float32).max)
    # The defaults of the format stand for "no bound".
    low = None if bounds["min"] is None or bounds["min"] <= -limit else float(bounds["min"])
    high = None if bounds["max"] is None or bounds["max"] >= limit else float(bounds["max"])
    return node.input(0) if low is None and high is None else node.op("clip", node.input(0), min=low, max=high)


@converter("Clip", since=11)
def clip(node: Node) -> Expr:
    x, low, high = node.input(0), node.optional(1), node.optional(2)
    bounds = [_read_bound(node, bound) for bound in (low, high)]
    if is_float(node.dtype(x)) and all(b is not None or e is None for b, e in zip(bounds, (low, high), strict=True)):
        return node.op("clip", x, min=bounds[0], max=bounds[1]) if low is not None or high is not None else x
    if low is not None:
        x = node.op("maximum", x, node.reshape(low, ()))
    return x if high is None else node.op("minimum", x, node.reshape(high, ()))


def _read_bound(node: Node, bound: Expr | None) -> float | None:
    value = None if bound is None else node.builder.known.constant(bound)
    return None if value is None or value.size != 1 else float(value.reshape(-1)[0])


@converter("Cast")
def cast_by_name(node: Node) -> Expr:
    return _cast_to(node, onnx.TensorProto.DataType.Value(node.require_attr("to")))


@converter("Cast", since=6)
def cast(node: Node) -> Value:
    data_type = node.require_attr("to")
    return write_numbers(node, node.input(0)) if data_type == onnx.TensorProto.STRING else _cast_to(node, data_type)


def _cast_to(node: Node, data_type: int) -> Expr:
    x = node.wide(node.input(0))
    if data_type in NARROW:
        return node.mark_narrow(_wrap(node, x, data_type), data_type)
    dtype = DTYPES.get(data_type)
    return convert_to(node, x, dtype or node.reject(f"it casts to {type_name(data_type)}"))


def _wrap(node: Node, x: Expr, data_type: int) -> Expr:
    """Narrow as `narrow` does, but keep the lowest bits of integers beyond the range."""
    carrier, own = NARROW[data_type]
    if is_float(carrier):
        return narrow(node, x, data_type)
    limits = ml_dtypes.iinfo(own)
    low, count = int(limits.min), int(limits.max) - int(limits.min) + 1
    bits = node.op("mod", node.op("subtract", node.cast(x, "int64"), low), count)
    return node.cast(node.op("add", bits, low), carrier)


def narrow(node: Node, x: Expr, data_type: int) -> Expr:
    """Clamp numbers to the range of a narrow element type, in the type that carries it."""
    carrier, own = NARROW[data_type]
    if is_float(carrier):
        rounding, saturate = node.attr("round_mode", "up"), bool(node.attr("saturate", 1))
        name = np.dtype(own).name
        return node.op("round_to_format", node.cast(x, carrier), format=name, saturate=saturate, rounding=rounding)
    limits = ml_dtypes.iinfo(own)
    whole = node.cast(x, "int64")
    return node.cast(node.op("minimum", node.op("maximum", whole, int(limits.min)), int(limits.max)), carrier)


def convert_to(node: Node, x: Expr, dtype: str) -> Expr:
    """Return a cast; to 8-bit floats, numbers beyond the largest become the largest (unless `saturate` is off)."""
    if dtype in LARGEST and node.dtype(x) not in LARGEST and node.attr("saturate", 1):
        wide = x if is_float(node.dtype(x)) else node.cast(x, "float32")
        for name, limit in (("greater", LARGEST[dtype]), ("less", -LARGEST[dtype])):  # NaN stays NaN
            wide = node.op("where", node.op(name, wide, limit), node.full(limit, (), node.dtype(wide)), wide)
        x = wide
    return node.cast(x, dtype)


@converter("CastLike", since=15)
def cast_like(node: Node) -> Value:
    if isinstance(node.value(1), StringTensor):
        return write_numbers(node, node.input(0))
    like = node.input(1)
    return _cast_to(node, node.importer.element_types.get(like) or DATA_TYPES[node.dtype(like)])


@converter("BitCast", since=26)
def bit_cast(node: Node) -> Expr:
    data_type = node.require_attr("to")
    dtype = DTYPES.get(data_type) or node.reject(f"it bitcasts to {type_name(data_type)}")
    x = node.input(0)
    if x in node.importer.element_types or itemsize(dtype) != itemsize(node.dtype(x)):
        node.reject("its element types differ in size")
    return node.op("reinterpret", x, dtype=dtype)
