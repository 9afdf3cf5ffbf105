"""LSTM, GRU and RNN: for each direction a product of all inputs, and an operator for the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr, RecurrentDirection
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


def _lstm(node: Node, part: RecurrentDirection) -> list[Expr]:
    # The gates are i, o, f, c, and the peepholes i, o, f.
    return part.lstm((0, 2, 3, 1), (0, 2, 1), input_forget=bool(node.attr("input_forget", 0)))


def _gru(node: Node, part: RecurrentDirection) -> list[Expr]:
    return part.gru((0, 1, 2), linear_before_reset=bool(node.attr("linear_before_reset", 0)))


def _rnn(node: Node, part: RecurrentDirection) -> list[Expr]:
    return part.rnn()


# operator: (gates, states, what emits it, default activations)
KINDS: dict[str, tuple[int, int, Callable[[Node, RecurrentDirection], list[Expr]], tuple[str, ...]]] = {
    "RNN": (1, 1, _rnn, ("Tanh",)),
    "GRU": (3, 1, _gru, ("Sigmoid", "Tanh")),
    "LSTM": (4, 2, _lstm, ("Sigmoid", "Tanh", "Tanh")),
}


@converter("RNN", "GRU", "LSTM")
def recurrent(node: Node) -> Sequence[Expr]:
    _, _, emit, defaults = KINDS[node.proto.op_type]
    chosen = node.attr("direction", "forward")
    is_batch_first = bool(node.attr("layout", 0))
    clip = node.attr("clip")
    results: list[list[Expr]] = []
    for index, activations in enumerate(activations_of(node, defaults, 2 if chosen == "bidirectional" else 1)):
        reverse = index == 1 or chosen == "reverse"
        attrs = {**activations, "reverse": reverse, "clip": float(clip) if clip else None}
        results.append(emit(node, _direction(node, index, is_batch_first, attrs)))
    return layer_outputs(node, results, is_batch_first)


def _direction(node: Node, index: int, is_batch_first: bool, attrs: dict[str, Any]) -> RecurrentDirection:
    gates, states, *_ = KINDS[node.proto.op_type]
    x = node.permute(node.input(0), (1, 0, 2)) if is_batch_first else node.input(0)
    weights, recurrent = (node.select(node.input(k), 0, index) for k in (1, 2))
    bias, peepholes = node.optional(3), node.optional(7) if node.proto.op_type == "LSTM" else None
    hidden = node.require_fixed(node.shape(recurrent)[-1], "size of its state")
    biases: list[Expr] = []
    if bias is not None:
        both, size = node.select(bias, 0, index), gates * hidden
        biases = [node.slice(both, 0, 0, size), node.slice(both, 0, size, 2 * size)]
    shape = node.shape(x)[1], hidden
    return RecurrentDirection(
        node,
        x,
        (weights, recurrent),
        biases,
        [initial_state(node, 5 + k, index, shape, is_batch_first) for k in range(states)],
        node.optional(4),
        None if peepholes is None else node.select(peepholes, 0, index),
        attrs,
    )


def initial_state(node: Node, index: int, direction: int, shape: tuple[Dim, int], is_batch_first: bool) -> Expr:
    given = node.optional(index)
    if given is None:
        return node.full(0, shape, node.dtype(node.input(0)))
    # A model may call the sizes of its states otherwise than those of its inputs: the run time checks that they agree.
    return node.reshape(node.select(given, 1 if is_batch_first else 0, direction), shape)


def layer_outputs(node: Node, results: Sequence[Sequence[Expr]], is_batch_first: bool) -> Sequence[Expr]:
    """Y (steps, directions, batch, hidden) and the last states (directions, batch, hidden), or batch first."""
    tracks, *finals = zip(*results, strict=True)
    states = [node.stack(list(each), 1 if is_batch_first else 0) for each in finals]
    if not node.has_output(0):
        return [states[0], *states]
    y = node.stack(list(tracks), 1)
    return [node.permute(y, (2, 0, 1, 3)) if is_batch_first else y, *states]


# --- activations ------------------------------------------------------------------------------------------------------
# name: (of the operator, (default alpha, default beta)); None for what it does not take
_ACTIVATIONS: dict[str, tuple[str, tuple[float | None, float | None]]] = {
    "sigmoid": ("sigmoid", (None, None)),
    "tanh": ("tanh", (None, None)),
    "relu": ("relu", (None, None)),
    "softsign": ("softsign", (None, None)),
    "softplus": ("softplus", (None, None)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "leakyrelu": ("leaky_relu", (0.01, None)),
    "thresholdedrelu": ("thresholded_relu", (1.0, None)),
    "elu": ("elu", (1.0, None)),
    "affine": ("affine", (1.0, 0.0)),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
}


def activations_of(node: Node, defaults: tuple[str, ...], directions: int) -> list[dict[str, Any]]:
    """Return the attributes of each direction; alphas and betas are handed out, in order, to those that take them."""
    names = [name.lower() for name in node.attr("activations") or defaults * directions]
    unknown = [name for name in names if name not in _ACTIVATIONS]
    if unknown or len(names) != len(defaults) * directions:
        node.reject(f"its activations {names} are unknown or of the wrong number")
    rows = [_ACTIVATIONS[name] for name in names]
    given = [iter(node.attr(f"activation_{which}") or ()) for which in ("alpha", "beta")]
    numbers = [
        tuple(0.0 if (default := row[1][k]) is None else float(next(values, default)) for row in rows)
        for k, values in enumerate(given)
    ]
    size = len(defaults)
    return [
        {
            "activations": tuple(row[0] for row in rows[first : first + size]),
            "alpha": numbers[0][first : first + size],
            "beta": numbers[1][first : first + size],
        }
        for first in range(0, len(rows), size)
    ]
