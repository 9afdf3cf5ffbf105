"""Recurrent layers with 8-bit weights, whose states are quantized in each step, as onnxruntime's DynamicQuantizeLSTM.

Four rows of the weights are one word, so that a dot product of bytes takes them as they lie: words
(ceil(H / 4), 4 * H), the first row in the lowest byte; rows beyond the end are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare
from kernelyard.ops.recurrent import (
    SAMPLE_LENGTHS,
    Operands,
    in_float64,
    lstm_operands,
    lstm_type,
    recurrent_attributes,
    recurrent_flops,
    run_lstm,
)
from kernelyard.ops.samples import floats, integers
from kernelyard.ops.type_rules import require_dtype, require_rank, unify

BYTES_OF_WORD = 4


def _type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    gates, recurrent, scale, zero, sums, hidden, memory = types[:7]
    require_dtype(gates, ("float32",))
    require_rank(recurrent, 2, "the weights")
    require_rank(hidden, 2, "the initial state")
    for type_, dtype, what in (
        (recurrent, "int32", "the words of weights"),
        (scale, "float32", "the scales"),
        (zero, "int32", "the zero points"),
        (sums, "int32", "the sums of weights"),
    ):
        require_dtype(type_, (dtype,), what)
    for type_, what in ((scale, "the scales"), (zero, "the zero points"), (sums, "the sums of weights")):
        require_rank(type_, 1, what)
        unify(type_.shape[0], recurrent.shape[1], f"{what} and the columns of weights")
    size = hidden.shape[1]
    unify(recurrent.shape[0], dims.ceildiv(size, BYTES_OF_WORD), "the words of weights and of a state")
    weights = TensorType((size, recurrent.shape[1]), "float32")
    return lstm_type((gates, weights, hidden, memory, *types[7:]), attrs)


def _reference(
    gates: np.ndarray,
    recurrent: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray,
    sums: np.ndarray,
    hidden: np.ndarray,
    memory: np.ndarray,
    lengths: np.ndarray | None = None,
    peepholes: np.ndarray | None = None,
    **attrs: object,
) -> tuple[np.ndarray, ...]:
    stored = np.ascontiguousarray(recurrent).view(np.int8).reshape(*recurrent.shape, BYTES_OF_WORD)
    weights = np.moveaxis(stored, 2, 1).reshape(-1, recurrent.shape[1])[: hidden.shape[1]].astype(np.int64)

    def product(state: np.ndarray) -> np.ndarray:
        x = state.astype(np.float32)
        low, high = min(x.min(initial=0), np.float32(0)), max(x.max(initial=0), np.float32(0))
        step = (high - low) / np.float32(255) if high > low else np.float32(1)
        origin = np.rint(-low / step)
        whole = np.minimum(np.rint(x / step) + origin, 255).astype(np.int64)
        total = whole @ weights - zero * whole.sum(1, keepdims=True) - int(origin) * sums.astype(np.int64)
        return total * (step * scale)

    return run_lstm(product, gates, (hidden, memory), lengths, peepholes, attrs)


def _operands(steps: int = 4, batch: int = 3, hidden: int = 5, zero: int = 0) -> Operands:
    gates, _, *states = lstm_operands(steps, batch, hidden)
    columns, depth = 4 * hidden, -(-hidden // BYTES_OF_WORD)
    stored = np.zeros((depth * BYTES_OF_WORD, columns), np.int8)
    stored[:hidden] = integers(hidden, columns, low=-128, high=128)
    words = np.ascontiguousarray(np.moveaxis(stored.reshape(depth, BYTES_OF_WORD, columns), 1, 2)).view(np.int32)
    scale, zeros = floats(columns, low=0.002, high=0.004), np.full(columns, zero, np.int32)
    sums = stored.sum(0, dtype=np.int32) - hidden * zeros
    return gates, words.reshape(depth, columns), scale, zeros, sums, *states


def _samples() -> Iterator[Sample]:
    make = _operands
    yield Sample(make(), label="plain")
    yield Sample(make(3, 1, 16, 5), {"reverse": True}, "in reverse, with zero points")
    yield Sample((*make(zero=-7), SAMPLE_LENGTHS), label="lengths")
    yield Sample(
        (*make(2, 3, 5), SAMPLE_LENGTHS, floats(3, 5, seed=9)), {"clip": 0.9, "input_forget": True}, "peepholes"
    )
    yield Sample(make(0), label="no step")
    yield Sample(make(2, 1, 33), {"activations": ("hard_sigmoid", "relu", "softsign")}, "other activations")


declare(
    "nn.dynamic_quantize_lstm",
    ("gates", "recurrent", "scale", "zero", "sums", "hidden", "memory", "lengths", "peepholes"),
    _type,
    in_float64(_reference),
    attributes=recurrent_attributes("sigmoid", "tanh", "tanh", input_forget=Attribute("bool", False)),
    samples=_samples,
    flops=recurrent_flops,
    optional_inputs=2,
    summary=(
        "an LSTM with 8-bit weights, (w - zero) * scale for each column: words of four rows (H / 4, 4 * H), with the"
        " sums of w - zero; before each product the hidden state of all sequences is quantized to 0 to 255"
    ),
)
