"""Sequences and optionals, whose lengths and contents are known when the model is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter
from kernelyard_onnx.values import Nothing, TensorSequence, Value

if TYPE_CHECKING:
    import onnx


@converter("SequenceConstruct", since=11)
def construct(node: Node) -> TensorSequence:
    items = tuple(node.require_inputs())
    return TensorSequence(items)


@converter("SequenceEmpty", since=11)
def empty(node: Node) -> TensorSequence:
    return TensorSequence(())


@converter("SequenceLength", since=11)
def length(node: Node) -> Expr:
    return Constant(np.int64(len(node.sequence(0).items)))


@converter("SequenceAt", since=11)
def at(node: Node) -> Expr:
    items = node.sequence(0).items
    return items[_position(node, int(node.scalar(node.input(1), "position")), len(items))]


@converter("SequenceInsert", since=11)
def insert(node: Node) -> TensorSequence:
    items, position = list(node.sequence(0).items), node.optional(2)
    where = len(items) if position is None else int(node.scalar(position, "position"))
    if not -len(items) <= where <= len(items):
        node.reject(f"its position {where} is out of range for {len(items)} elements")
    items.insert(where, node.input(1))
    return TensorSequence(tuple(items))


@converter("SequenceErase", since=11)
def erase(node: Node) -> TensorSequence:
    items, position = list(node.sequence(0).items), node.optional(1)
    del items[_position(node, -1 if position is None else int(node.scalar(position, "position")), len(items))]
    return TensorSequence(tuple(items))


def _position(node: Node, value: int, count: int) -> int:
    if not -count <= value < count:
        node.reject(f"its position {value} is out of range for {count} elements")
    return value


@converter("SplitToSequence", since=11)
def split_to_sequence(node: Node) -> TensorSequence:
    x, sizes = node.input(0), node.optional(1)
    axis = node.axis(node.attr("axis", 0), node.rank(x))
    whole = node.shape(x)[axis]
    squeezed = sizes is None and not node.attr("keepdims", 1)
    parts = _sections(node, whole if isinstance(whole, int) else None, sizes)
    pieces = node.ops("split", x, axis=axis, sections=tuple(parts))
    if squeezed:
        shape = node.shape(x)
        pieces = [node.reshape(piece, shape[:axis] + shape[axis + 1 :]) for piece in pieces]
    return TensorSequence(tuple(pieces))


def _sections(node: Node, whole: int | None, sizes: Expr | None) -> Sequence[int]:
    if sizes is not None and node.rank(sizes) == 1:
        return node.ints(sizes, "split")
    if whole is None:
        node.reject("the size of its split axis is not fixed")
    part = 1 if sizes is None else int(node.scalar(sizes, "split"))
    full, rest = divmod(whole, part)
    return [part] * full + [rest] * bool(rest)


@converter("ConcatFromSequence", since=11)
def concat_from_sequence(node: Node) -> Expr:
    items = node.sequence(0).items
    if not items:
        node.reject("it concatenates an empty sequence")
    new_axis = bool(node.attr("new_axis", 0))
    axis = node.axis(node.require_attr("axis"), node.rank(items[0]) + new_axis)
    return node.stack(items, axis) if new_axis else node.concat(items, axis)


@converter("SequenceMap", since=17)
def sequence_map(node: Node) -> Sequence[Value]:
    """Return a graph for each element; inputs that are tensors are the same for all."""
    body: onnx.GraphProto = node.require_attr("body")
    made: list[list[Expr]] = [[] for _ in body.output]
    for index in range(len(node.sequence(0).items)):
        values = [v.items[index] if isinstance(v, TensorSequence) else v for v in node.inputs]
        for items, value in zip(made, node.importer.run_subgraph(body, node.scope, values), strict=True):
            items.append(value if isinstance(value, Expr) else node.reject("its body returns no tensor"))
    return [TensorSequence(tuple(items)) for items in made]


# --- optionals --------------------------------------------------------------------------------------------------------
@converter("Optional", since=15)
def optional(node: Node) -> Value:
    return node.value(0) or Nothing()


@converter("OptionalHasElement", since=15)
def has_element(node: Node) -> Expr:
    value = node.value(0)
    return Constant(np.bool_(value is not None and not isinstance(value, Nothing)))


@converter("OptionalGetElement", since=15)
def get_element(node: Node) -> Value:
    value = node.value(0)
    return node.reject("its optional is empty") if value is None or isinstance(value, Nothing) else value
