"""LSTM, GRU and RNN: for each direction a product of all inputs with the weights, and an operator for the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


@dataclass(frozen=True)
class Direction:
    """One direction of a layer: its part of each operand of the node, time-major; None for what is left out."""

    node: Node
    x: Expr
    weights: Expr  # (gates * hidden, inputs)
    recurrent: Expr  # (gates * hidden, hidden)
    bias: Expr | None  # (2 * gates * hidden,): of the inputs, then of the states
    states: tuple[Expr, ...]  # (batch, hidden) each
    lengths: Expr | None
    peepholes: Expr | None  # (3 * hidden,)
    hidden: int

    def rows(self, x: Expr, gates: Sequence[int]) -> Expr:
        """Return the rows of some gates, in this order."""
        size = self.hidden
        return self.node.concat([self.node.slice(x, 0, n * size, (n + 1) * size) for n in gates], 0)

    def recurrent_weights(self, gates: Sequence[int]) -> Expr:
        """Return the weights of some gates, as the right side of a product."""
        return self.node.permute(self.rows(self.recurrent, gates), (1, 0))

    def given(self, gates: Sequence[int], apart: Sequence[int] = ()) -> Expr:
        """Return x W^T plus both biases; apart: gates whose bias of the states is added by the operator."""
        node, count = self.node, len(gates)
        steps, batch, size = node.shape(self.x)
        weights = node.permute(self.rows(self.weights, gates), (1, 0))
        # All sequences are rows of one matrix.
        total = node.op("matmul", node.reshape(self.x, (steps * batch, size)), weights)
        if self.bias is not None:
            parts = [self.zeros() if gate in apart else self.rows(self.bias, [count + gate]) for gate in gates]
            bias = node.op("add", self.rows(self.bias, gates), node.concat(parts, 0))
            total = node.op("add", total, bias)
        return node.reshape(total, (steps, batch, count * self.hidden))

    def zeros(self) -> Expr:
        """Return a bias of zeros."""
        return self.node.full(0, (self.hidden,), self.node.dtype(self.x))

    def optional(self) -> tuple[Expr, ...]:
        """Return the operands that may be left out."""
        if self.peepholes is None:
            return () if self.lengths is None else (self.lengths,)
        steps, batch, _ = self.node.shape(self.x)
        lengths = self.lengths
        if lengths is None:
            lengths = self.node.full(steps, (batch,), "int64")
        return lengths, self.node.reshape(self.rows(self.peepholes, (0, 2, 1)), (3, self.hidden))  # of i, o, f


# --- the operators, whose gates are in another order ------------------------------------------------------------------
def _lstm(part: Direction, **attrs: object) -> list[Expr]:
    gates = (0, 2, 3, 1)  # of i, o, f, c
    coupled = bool(part.node.attr("input_forget", 0))
    operands = part.given(gates), part.recurrent_weights(gates), *part.states, *part.optional()
    return part.node.ops("nn.lstm", *operands, input_forget=coupled, **attrs)


def _gru(part: Direction, **attrs: object) -> list[Expr]:
    gates = (0, 1, 2)
    is_linear = bool(part.node.attr("linear_before_reset", 0))
    # The bias of the states is then multiplied by the reset gate.
    apart = (2,) if is_linear and part.bias is not None else ()
    bias = part.rows(part.bias, [5]) if apart and part.bias is not None else part.zeros()
    weights = part.recurrent_weights((0, 1)), part.recurrent_weights((2,))
    operands = part.given(gates, apart), *weights, bias, *part.states, *part.optional()
    return part.node.ops("nn.gru", *operands, linear_before_reset=is_linear, **attrs)


def _rnn(part: Direction, **attrs: object) -> list[Expr]:
    operands = part.given((0,)), part.recurrent_weights((0,)), *part.states, *part.optional()
    return part.node.ops("nn.rnn", *operands, **attrs)


# --- the layer --------------------------------------------------------------------------------------------------------
KINDS: dict[str, tuple[int, Callable[..., list[Expr]], tuple[str, ...]]] = {
    # states, operator, default activations
    "RNN": (1, _rnn, ("Tanh",)),
    "GRU": (1, _gru, ("Sigmoid", "Tanh")),
    "LSTM": (2, _lstm, ("Sigmoid", "Tanh", "Tanh")),
}


@converter("RNN", "GRU", "LSTM", since=7)
def recurrent(node: Node) -> Sequence[Expr]:
    count, operator, defaults = KINDS[node.proto.op_type]
    is_batch_first = bool(node.attr("layout", 0))
    x = node.permute(node.input(0), (1, 0, 2)) if is_batch_first else node.input(0)
    chosen = node.attr("direction", "forward")
    directions = 2 if chosen == "bidirectional" else 1
    activations = _activations(node, defaults, directions)
    clip = node.attr("clip")
    results: list[list[Expr]] = []
    for index, functions in enumerate(activations):
        reverse = index == 1 or chosen == "reverse"
        part = _direction(node, x, index, count, is_batch_first)
        results.append(operator(part, reverse=reverse, clip=float(clip) if clip else None, **functions))
    return _outputs(node, results, is_batch_first)


def _direction(node: Node, x: Expr, index: int, states: int, is_batch_first: bool) -> Direction:
    weights, recurrent = (node.select(node.input(k), 0, index) for k in (1, 2))
    bias = node.optional(3)
    peepholes = node.optional(7) if node.proto.op_type == "LSTM" else None
    hidden = node.fixed(node.shape(recurrent)[-1], "size of its state")
    batch = node.shape(x)[1]
    return Direction(
        node,
        x,
        weights,
        recurrent,
        None if bias is None else node.select(bias, 0, index),
        tuple(_initial(node, 5 + k, index, (batch, hidden), x, is_batch_first) for k in range(states)),
        node.optional(4),
        None if peepholes is None else node.select(peepholes, 0, index),
        hidden,
    )


def _initial(node: Node, index: int, direction: int, shape: tuple[Dim, int], x: Expr, is_batch_first: bool) -> Expr:
    given = node.optional(index)
    if given is None:
        return node.full(0, shape, node.dtype(x))
    return node.select(given, 1 if is_batch_first else 0, direction)


def _outputs(node: Node, results: Sequence[Sequence[Expr]], is_batch_first: bool) -> Sequence[Expr]:
    """Y (steps, directions, batch, hidden) and the last states (directions, batch, hidden), or batch first."""
    tracks, *finals = zip(*results, strict=True)
    states = [node.stack(list(each), 1 if is_batch_first else 0) for each in finals]
    if not node.has_output(0):
        return [states[0], *states]
    y = node.stack(list(tracks), 1)
    return [node.permute(y, (2, 0, 1, 3)) if is_batch_first else y, *states]


# --- activations ------------------------------------------------------------------------------------------------------
# name: (of the operator, default alpha and beta; None for what it does not take)
_ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "sigmoid": ("sigmoid", None, None),
    "tanh": ("tanh", None, None),
    "relu": ("relu", None, None),
    "softsign": ("softsign", None, None),
    "softplus": ("softplus", None, None),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "leakyrelu": ("leaky_relu", 0.01, None),
    "thresholdedrelu": ("thresholded_relu", 1.0, None),
    "elu": ("elu", 1.0, None),
    "affine": ("affine", 1.0, 0.0),
    "scaledtanh": ("scaled_tanh", 1.0, 1.0),
}


def _activations(node: Node, defaults: tuple[str, ...], directions: int) -> list[dict[str, tuple[object, ...]]]:
    """Return the attributes of each direction; alphas and betas are handed out, in order, to those that take them."""
    names = [name.lower() for name in node.attr("activations") or defaults * directions]
    unknown = [name for name in names if name not in _ACTIVATIONS]
    if unknown or len(names) != len(defaults) * directions:
        node.reject(f"its activations {names} are unknown or of the wrong number")
    rows = [_ACTIVATIONS[name] for name in names]
    given = [iter(node.attr(f"activation_{which}") or ()) for which in ("alpha", "beta")]
    numbers = [
        tuple(0.0 if row[k] is None else float(next(values, row[k])) for row in rows)
        for k, values in enumerate(given, start=1)
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
