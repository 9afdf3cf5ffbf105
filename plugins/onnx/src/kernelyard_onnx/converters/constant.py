"""Constants and tensors made from sizes."""

from __future__ import annotations

import numpy as np

from kernelyard import dims
from kernelyard.dims import SymbolicDim
from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.bounds import maximum
from kernelyard_onnx.converters.text import require_text
from kernelyard_onnx.known_values import MAX_ELEMENTS
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter
from kernelyard_onnx.tensors import DTYPES, type_name
from kernelyard_onnx.values import StringTensor, Value

_CONSTANT_TYPES: dict[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


@converter("Constant")
def constant(node: Node) -> Value:
    tensor = next((a.t for a in node.proto.attribute if a.name == "value"), None)
    if tensor is not None:
        return node.importer.constant(tensor)
    for name in ("value_string", "value_strings"):
        if name in node.attributes:
            value = node.attributes[name]
            return (
                require_text(value) if name == "value_strings" else StringTensor(require_text([value]).data.reshape(()))
            )
    for name in ("value", "sparse_value"):
        if name in node.attributes:
            return Constant(node.attributes[name])
    for name, dtype in _CONSTANT_TYPES.items():
        if name in node.attributes:
            return Constant(np.asarray(node.attributes[name], dtype))
    return node.reject(f"its value attribute is {', '.join(node.attributes) or 'missing'}")


@converter("ConstantOfShape", since=9)
def constant_of_shape(node: Node) -> Expr:
    value = node.attr("value", np.zeros(1, np.float32))
    return node.broadcast_to(Constant(value.reshape(())), node.sizes(node.input(0), "shape"))


@converter("Shape")
def shape(node: Node) -> Expr:
    sizes = node.shape(node.input(0))
    return node.op("shape_tensor", dims=sizes[slice(node.attr("start", 0), node.attr("end"))])


@converter("Size")
def size(node: Node) -> Expr:
    return node.reshape(node.op("shape_tensor", dims=(dims.product(node.shape(node.input(0))),)), ())


@converter("Range", since=11)
def number_range(node: Node) -> Expr:
    bounds = [node.input(index) for index in range(3)]
    known = [node.builder.known.constant(bound) for bound in bounds]
    numbers = [value.reshape(()) for value in known if value is not None]
    if len(numbers) == len(bounds):
        start, stop, step = numbers
        count = max(int(np.ceil((stop - start) / step)), 0) if step else node.reject("its step is 0")
        if count <= MAX_ELEMENTS or not np.issubdtype(start.dtype, np.integer):
            node.affordable(count, "result")
            return Constant((start + np.arange(count).astype(start.dtype) * step).astype(start.dtype))
    if any(node.builder.known.dims(bound) is None for bound in bounds):
        return _range_of_data(node, *bounds)
    start, stop, step = (
        node.dims(bound, name)[0] for bound, name in zip(bounds, ("start", "limit", "delta"), strict=True)
    )
    if isinstance(step, SymbolicDim) or step == 0:
        node.reject("its step is not a fixed number")
    count = dims.ceildiv(stop - start, step) if step > 0 else dims.ceildiv(start - stop, -step)
    return node.op("arange", start=start, step=step, count=maximum(count, 0), dtype=node.dtype(bounds[0]))


def _range_of_data(node: Node, *bounds: Expr) -> Expr:
    start, stop, step = (node.reshape(bound, ()) for bound in bounds)
    span, wide = node.op("subtract", stop, start), "float64"
    turns = node.op("ceil", node.op("divide", node.cast(span, wide), node.cast(step, wide)))
    (count,) = node.sizes(node.cast(node.op("maximum", turns, 0.0), "int64"), "length")
    index = node.op("arange", start=0, step=1, count=count, dtype="int64")
    return node.op("add", node.op("multiply", node.cast(index, node.dtype(start)), step), start)


@converter("EyeLike", since=9)
def eye_like(node: Node) -> Expr:
    x = node.input(0)
    data_type = node.attr("dtype")
    dtype = node.dtype(x)
    if data_type is not None:
        dtype = DTYPES.get(data_type) or node.reject(f"its element type is {type_name(data_type)}")
    rows, columns = node.shape(x)
    offset = int(node.attr("k", 0))
    down = node.op("arange", start=offset, step=1, count=rows, dtype="int64")
    right = node.op("arange", start=0, step=1, count=columns, dtype="int64")
    return node.cast(node.op("equal", node.along(down, 0, 2), node.along(right, 1, 2)), dtype)
