"""Categories of ai.onnx.ml: labels, one-hot encodings and maps, of numbers and of text.

Text that a program chooses (`LookedUpText`) is encoded by encoding its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.converters.text import each
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import LEARNING, TEXT, converter, find
from kernelyard_onnx.tensors import DTYPES, type_name
from kernelyard_onnx.values import LookedUpText, StringTensor, Value

# What moves text about moves the indices of text that is looked up.
MOVING = (
    "Gather",
    "Identity",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Slice",
    "Expand",
    "ArrayFeatureExtractor",
)
_KINDS = ("strings", "int64s", "floats")


def encode_texts(node: Node, function: Callable[[Any], object], dtype: Any) -> Expr:
    """Return what a function makes of the texts of the first input."""
    value = node.value(0)
    if isinstance(value, LookedUpText):
        return node.op("take", value.map(function).astype(dtype), value.indices, axis=0)
    if isinstance(value, StringTensor):
        return Constant(each(value.data, function).astype(dtype))
    return node.reject("its input is no text")


def text_from(node: Node, function: Callable[[Any], str]) -> Value:
    """Return what a function, which gives text, makes of the texts of the first input."""
    value = node.value(0)
    if isinstance(value, LookedUpText):
        table = np.empty(len(value.table), object)
        table[:] = [function(entry) for entry in value.table]
        return LookedUpText(value.indices, table)
    if isinstance(value, StringTensor):
        return StringTensor(each(value.data, function))
    return node.reject("its input is no text")


def move_texts(op_type: str) -> Callable[[Node], Value]:
    """Return the converter of an operator that moves text."""
    domain = LEARNING if op_type == "ArrayFeatureExtractor" else ""

    def convert(node: Node) -> Value:
        value = node.value(0)
        if isinstance(value, StringTensor):
            table, places = np.unique(value.data.reshape(-1).astype(str), return_inverse=True)
            value = LookedUpText(Constant(places.reshape(value.data.shape).astype(np.int64)), table.astype(object))
        numeric = find(domain, op_type, node.opset)
        if numeric is None or not isinstance(value, LookedUpText):
            return node.reject("its first input is no text")
        result = numeric(node.like(op_type, [value.indices, *node.inputs[1:]]))
        indices = result if isinstance(result, Expr) else node.reject("it makes several tensors of text")
        known = node.builder.known.constant(indices)
        return LookedUpText(indices, value.table) if known is None else StringTensor(value.table[known])

    return convert


# --- labels -----------------------------------------------------------------------------------------------------------
@converter("LabelEncoder", domain=LEARNING)
@converter("LabelEncoder", domain=TEXT)
def label_encoder(node: Node) -> Value:
    if node.attr("classes_strings"):
        return _number_of_class(node)
    keys, of_text = _side(node, "keys")
    values, to_text = _side(node, "values")
    if len(keys) != len(values):
        node.reject(f"it has {len(keys)} keys and {len(values)} values")
    default = _default(node, values, to_text)
    if of_text:
        table = dict(zip(keys, values, strict=True))
        if to_text:
            return text_from(node, lambda item: table.get(item, default))
        return encode_texts(node, lambda item: table.get(item, default), values.dtype)
    return _encode_numbers(node, keys, values, default)


def _number_of_class(node: Node) -> Value:
    """Opset 1: the number of a text among the classes, or the text of a number."""
    classes = list(node.require_attr("classes_strings"))
    if isinstance(node.value(0), Expr):
        return _encode_numbers(
            node, np.arange(len(classes)), np.array(classes, object), node.attr("default_string", "_Unused")
        )
    number = {text: place for place, text in enumerate(classes)}
    default = node.attr("default_int64", -1)
    return encode_texts(node, lambda item: number.get(item, default), np.int64)


def _side(node: Node, name: str) -> tuple[np.ndarray, bool]:
    """Return the keys or the values, and whether they are text."""
    given = node.attr(f"{name}_tensor")
    if given is not None:
        return (given.data.reshape(-1), True) if isinstance(given, StringTensor) else (given.reshape(-1), False)
    for kind in _KINDS:
        found = node.attr(f"{name}_{kind}")
        if found:
            dtype = {"strings": object, "int64s": np.int64, "floats": np.float32}[kind]
            return np.array(found, dtype), kind == "strings"
    return node.reject(f"it has no {name}")


def _default(node: Node, values: np.ndarray, to_text: bool) -> Any:
    given = node.attr("default_tensor")
    if given is not None:
        return (given.data if isinstance(given, StringTensor) else given).reshape(-1)[0]
    if to_text:
        return node.attr("default_string", "_Unused")
    if values.dtype.kind == "f":
        return node.attr("default_float", -0.0)
    return node.attr("default_int64", -1)


def _encode_numbers(node: Node, keys: np.ndarray, values: np.ndarray, default: Any) -> Value:
    """Return the values of numbers: a binary search among the sorted keys is a sum of comparisons for few of them."""
    x = node.input(0)
    keys, first = np.unique(keys.astype(node.dtype(x)), return_index=True)  # NaN is a key of its own
    table = np.empty(len(keys) + 1, values.dtype)
    table[:-1], table[-1] = values[first], default
    column = node.unsqueeze(x, node.rank(x))
    same = node.op("equal", column, keys)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        same = node.op("logical_or", same, node.op("logical_and", node.op("isnan", column), np.isnan(keys)))
    last = (node.rank(x),)
    place = node.op("argmax", node.cast(same, "int32"), axis=last[0], keepdims=False)
    found = node.op("where", node.op("any", same, axes=last, keepdims=False), place, node.expr(len(keys), "int64"))
    return LookedUpText(found, table) if values.dtype == object else node.op("take", table, found, axis=0)


# --- categories -------------------------------------------------------------------------------------------------------
@converter("OneHotEncoder", domain=LEARNING)
def one_hot_numbers(node: Node) -> Expr:
    x, categories = node.input(0), node.attr("cats_int64s") or node.reject("it has no cats_int64s")
    return _one_hot(node, node.cast(x, "int64"), np.array(categories, np.int64))


@converter("OneHotEncoder", domain=TEXT)
def one_hot_text(node: Node) -> Expr:
    categories = node.attr("cats_strings") or node.reject("it has no cats_strings")
    number = {text: place for place, text in enumerate(categories)}
    places = encode_texts(node, lambda item: number.get(item, -1), np.int64)
    return _one_hot(node, places, np.arange(len(categories)))


def _one_hot(node: Node, x: Expr, categories: np.ndarray) -> Expr:
    """Compare along a new last axis; categories that are not known are zeros (`zeros` asks for an error otherwise)."""
    return node.cast(node.op("equal", node.unsqueeze(x, node.rank(x)), categories), "float32")


def _categories(node: Node) -> Mapping[str, int]:
    texts, codes = node.require_attr("cats_strings"), node.require_attr("cats_int64s")
    return dict(zip(texts, codes, strict=True))


@converter("CategoryMapper", domain=TEXT)
def category_codes(node: Node) -> Expr:
    codes, default = _categories(node), node.attr("default_int64", -1)
    return encode_texts(node, lambda item: codes.get(item, default), np.int64)


@converter("CategoryMapper", domain=LEARNING)
def category_texts(node: Node) -> Value:
    codes = _categories(node)
    default = node.attr("default_string", "_Unused")
    return _encode_numbers(node, np.array([*codes.values()]), np.array([*codes], object), default)


@converter("Equal", domain=TEXT)
def equal(node: Node) -> Expr:
    """Compare text with text that is known when the model is compiled."""
    sides = [node.value(0), node.value(1)]
    looked_up = next((side for side in sides if isinstance(side, LookedUpText)), None)
    other = next((side for side in sides if isinstance(side, StringTensor)), None)
    if looked_up is None and all(isinstance(side, StringTensor) for side in sides):
        a, b = (side.data for side in sides if isinstance(side, StringTensor))
        return Constant(each(a, lambda x, y: x == y, b).astype(bool))
    if looked_up is None or other is None:
        return node.reject("it compares texts that are both unknown")
    number = {text: place for place, text in enumerate(dict.fromkeys(other.data.reshape(-1)))}
    codes = looked_up.map(lambda item: number.get(item, -1)).astype(np.int64)
    wanted = each(other.data, lambda item: number[item]).astype(np.int64)
    return node.op("equal", node.op("take", codes, looked_up.indices, axis=0), wanted)


@converter("Shape", domain=TEXT)
def shape(node: Node) -> Expr:
    value = node.value(0)
    sizes = value.data.shape if isinstance(value, StringTensor) else node.shape(_indices(node))
    return node.op("shape_tensor", dims=tuple(sizes[slice(node.attr("start", 0), node.attr("end"))]))


def _indices(node: Node) -> Expr:
    value = node.value(0)
    return value.indices if isinstance(value, LookedUpText) else node.reject("its input is no text")


@converter("Concat", domain=TEXT)
def concat(node: Node) -> Value:
    """Join texts, the tables of those that are looked up too."""
    if all(isinstance(value, StringTensor) for value in node.inputs):
        parts = [value.data for value in node.inputs if isinstance(value, StringTensor)]
        return StringTensor(np.concatenate(parts, node.axis(node.require_attr("axis"), parts[0].ndim)))
    numbers: dict[str | None, int] = {}
    parts = []
    for value in node.inputs:
        if isinstance(value, StringTensor):
            parts.append(Constant(each(value.data, lambda t: numbers.setdefault(t, len(numbers))).astype(np.int64)))
        elif isinstance(value, LookedUpText):
            codes = value.map(lambda t: numbers.setdefault(t, len(numbers))).astype(np.int64)
            parts.append(node.op("take", codes, value.indices, axis=0))
        else:
            node.reject("it joins text with something else")
    table = np.array([*numbers], object)
    return LookedUpText(node.concat(parts, node.axis(node.require_attr("axis"), node.rank(parts[0]))), table)


@converter("Cast", domain=TEXT)
def cast(node: Node) -> Value:
    data_type, value = node.require_attr("to"), node.value(0)
    if data_type == onnx.TensorProto.STRING and isinstance(value, (LookedUpText, StringTensor)):
        return value
    dtype = DTYPES.get(data_type) or node.reject(f"it casts text to {type_name(data_type)}")
    if isinstance(value, LookedUpText) and not value.is_known:
        node.reject("it casts text that is not known")
    return encode_texts(node, float, to_numpy(dtype))


for _op_type in MOVING:
    converter(_op_type, domain=TEXT)(move_texts(_op_type))
