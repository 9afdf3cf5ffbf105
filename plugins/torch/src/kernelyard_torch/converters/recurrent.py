"""LSTM, GRU and RNN: for each layer and direction a product of all inputs, and an operator for the steps.

Those with a projection, or with dropout in training, come apart before (`kernelyard_torch.decompositions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelyard.plugins.api import Expr, RecurrentDirection
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

Cell = Callable[[RecurrentDirection], list[Expr]]


@converter("aten.lstm.input")
def lstm(node: Node, x: Expr, states: Sequence[Expr], *rest: Any) -> Sequence[Expr]:
    return _layers(node, lambda part: part.lstm((0, 1, 2, 3)), x, states, *rest)


@converter("aten.gru.input")
def gru(node: Node, x: Expr, state: Expr, *rest: Any) -> Sequence[Expr]:
    # The gates are reset, update, new.
    return _layers(node, lambda part: part.gru((1, 0, 2), linear_before_reset=True), x, [state], *rest)


@converter("aten.rnn_tanh.input")
def rnn_tanh(node: Node, x: Expr, state: Expr, *rest: Any) -> Sequence[Expr]:
    return _layers(node, lambda part: part.rnn(activations=("tanh",)), x, [state], *rest)


@converter("aten.rnn_relu.input")
def rnn_relu(node: Node, x: Expr, state: Expr, *rest: Any) -> Sequence[Expr]:
    return _layers(node, lambda part: part.rnn(activations=("relu",)), x, [state], *rest)


def _layers(
    node: Node,
    cell: Cell,
    x: Expr,
    states: Sequence[Expr],
    weights: Sequence[Expr],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Sequence[Expr]:
    """Return the hidden states of the last layer, and the last states of all layers and directions."""
    x = node.permute(x, (1, 0, 2)) if batch_first else x
    each = 4 if has_biases else 2
    directions = 1 + bidirectional
    last: list[list[Expr]] = []
    for layer in range(layers):
        tracks: list[Expr] = []
        for number in range(layer * directions, (layer + 1) * directions):
            own, others, *biases = weights[number * each : (number + 1) * each]
            before = [node.select(state, 0, number) for state in states]
            reverse = {"reverse": number % directions == 1}
            track, *after = cell(RecurrentDirection(node, x, (own, others), biases, before, attrs=reverse))
            tracks.append(track)
            last.append(after)
        x = node.concat(tracks, 2)
    finals = [node.stack(list(parts), 0) for parts in zip(*last, strict=True)]
    return [node.permute(x, (1, 0, 2)) if batch_first else x, *finals]
