"""DynamicQuantizeLSTM of the domain com.microsoft: 8-bit weights, inputs and states that are quantized as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.quantization import dequantize, quantize_dynamically
from kernelyard_onnx.converters.recurrent import activations_of, initial_state, layer_outputs
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter

# Where a model has input, forget, candidate and output, and the peepholes of input, forget and output.
GATES, PEEPHOLES = (0, 2, 3, 1), (0, 2, 1)
ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")
BYTES_OF_WORD = 4


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamically_quantized_lstm(node: Node) -> Sequence[Expr]:
    """Convert an LSTM that quantizes the inputs of all steps together, and the states of all sequences in each step."""
    chosen = node.attr("direction", "forward")
    clip = node.attr("clip")
    common = {"clip": float(clip) if clip else None, "input_forget": bool(node.attr("input_forget", 0))}
    x = quantize_dynamically(node)
    results: list[list[Expr]] = []
    for index, activations in enumerate(activations_of(node, ACTIVATIONS, 2 if chosen == "bidirectional" else 1)):
        attrs = {**activations, **common, "reverse": index == 1 or chosen == "reverse"}
        results.append(_direction(node, index, x, attrs))
    return layer_outputs(node, results, is_batch_first=False)


def _direction(node: Node, index: int, x: tuple[Expr, Expr, Expr], attrs: dict[str, Any]) -> list[Expr]:
    recurrent = _reorder_gates(node, node.select(node.input(2), 0, index), 1)
    hidden, columns = (node.require_fixed(size, "size of its state") for size in node.shape(recurrent))
    batch = node.shape(node.input(0))[1]
    states = [initial_state(node, 5 + k, index, (batch, hidden), is_batch_first=False) for k in (0, 1)]
    scale, zero = (_of_columns(node, 10 + k, index, columns) for k in (0, 1))
    signed, zero = _to_signed(node, recurrent, zero)
    sums = node.op("sum", signed, axes=(0,), keepdims=False)
    sums = node.op("subtract", sums, node.op("multiply", zero, node.full(hidden, (), "int32")))
    weights = _pack_words(node, signed), scale, zero, sums
    operands = _gates(node, index, x), *weights, *states, *_optional(node, index)
    return node.ops("nn.dynamic_quantize_lstm", *operands, **attrs)


def _gates(node: Node, index: int, x: tuple[Expr, Expr, Expr]) -> Expr:
    """Return the product of all inputs with their weights, plus both biases."""
    stored, scale, zero = x
    steps, batch, size = node.shape(stored)
    weights = _reorder_gates(node, node.select(node.input(1), 0, index), 1)
    columns = node.shape(weights)[1]
    of_weights = (_parameter(node, 8 + k, index) for k in (0, 1))
    # All sequences are rows of one matrix.
    rows = dequantize(node, node.reshape(stored, (steps * batch, size)), scale, zero)
    total = node.op("matmul", rows, dequantize(node, weights, *of_weights, axis=1))
    bias = node.optional(3)
    if bias is not None:
        own, others = (node.select(node.reshape(node.select(bias, 0, index), (2, columns)), 0, k) for k in (0, 1))
        total = node.op("add", total, _reorder_gates(node, node.op("add", own, others), 0))
    return node.reshape(total, (steps, batch, columns))


def _reorder_gates(node: Node, x: Expr, axis: int, order: Sequence[int] = GATES) -> Expr:
    """Return what an axis has by gate in the order of the operator."""
    size = node.require_fixed(node.shape(x)[axis], "size of its gates") // len(order)
    return node.concat([node.slice(x, axis, n * size, (n + 1) * size) for n in order], axis)


def _parameter(node: Node, place: int, index: int) -> Expr:
    """Return a scale or zero point of one direction: one number, or one of each column, by gate."""
    found = node.select(node.input(place), 0, index)
    return _reorder_gates(node, found, 0) if node.rank(found) else found


def _of_columns(node: Node, place: int, index: int, columns: int) -> Expr:
    return node.broadcast_to(_parameter(node, place, index), (columns,))


def _to_signed(node: Node, stored: Expr, zero: Expr) -> tuple[Expr, Expr]:
    """Return 8-bit weights and their zero points as int32, within the range of int8."""
    whole = node.cast(stored, "int32"), node.cast(zero, "int32")
    if node.dtype(stored) == "int8":
        return whole
    middle = node.full(128, (), "int32")
    return node.op("subtract", whole[0], middle), node.op("subtract", whole[1], middle)


def _pack_words(node: Node, signed: Expr) -> Expr:
    """Return four rows in a word, the first in its lowest byte."""
    hidden, columns = (node.require_fixed(size, "size of its state") for size in node.shape(signed))
    missing = -hidden % BYTES_OF_WORD
    if missing:
        signed = node.concat([signed, node.full(0, (missing, columns), "int32")], 0)
    rows = node.reshape(signed, ((hidden + missing) // BYTES_OF_WORD, BYTES_OF_WORD, columns))
    shifts = 8 * np.arange(BYTES_OF_WORD, dtype=np.int32).reshape(BYTES_OF_WORD, 1)
    placed = node.op("left_shift", node.op("bitwise_and", rows, np.array(255, np.int32)), shifts)
    return node.op("sum", placed, axes=(1,), keepdims=False)


def _optional(node: Node, index: int) -> tuple[Expr, ...]:
    """Return the lengths and peepholes, where there are any."""
    lengths, peepholes = node.optional(4), node.optional(7)
    if peepholes is None:
        return () if lengths is None else (lengths,)
    steps, batch, _ = node.shape(node.input(0))
    chosen = _reorder_gates(node, node.select(peepholes, 0, index), 0, PEEPHOLES)
    rows = node.reshape(chosen, (len(PEEPHOLES), node.require_fixed(node.shape(chosen)[0], "size of its state") // 3))
    return (node.full(steps, (batch,), "int64") if lengths is None else lengths), rows
