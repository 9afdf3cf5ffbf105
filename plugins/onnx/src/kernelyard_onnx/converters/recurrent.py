"""LSTM, GRU and RNN: unrolled over a short sequence of fixed length, else a loop of the program.

All steps share one matrix product for the inputs; only the product with the state is done step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard.dims import Dim
from kernelyard.plugins.api import Constant, Expr, Var
from kernelyard_onnx.converters.loops import Loop
from kernelyard_onnx.graph_builder import GraphBuilder
from kernelyard_onnx.node import Node
from kernelyard_onnx.outlined_graph import OutlinedGraph
from kernelyard_onnx.registry import converter

# Unrolled code grows with every step.
MAX_STEPS = 64
Activation = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent layer: weights of this direction, activations, and the node around it."""

    node: Node
    given: Expr  # (steps, batch, gates * hidden): x W^T + both biases
    recurrent: Expr  # (hidden, gates * hidden)
    recurrent_bias: Expr | None  # (gates * hidden,), only where it must not be added beforehand
    peepholes: Expr | None
    activations: list[Activation]
    hidden: int

    def clipped(self, x: Expr) -> Expr:
        limit = self.node.attr("clip")
        return x if not limit else self.node.op("clip", x, min=-float(limit), max=float(limit))

    def gate(self, x: Expr, index: int) -> Expr:
        """Columns of one gate."""
        rank = self.node.rank(x)
        return self.node.slice(x, rank - 1, index * self.hidden, (index + 1) * self.hidden)

    def product(self, state: Expr, weight: Expr) -> Expr:
        return self.node.op("matmul", state, weight)


States = tuple[Expr, ...]
Step = Callable[[Cell, Expr, States], States]


# --- the three cells --------------------------------------------------------------------------------------------------
def _rnn_step(cell: Cell, given: Expr, states: States) -> States:
    total = cell.node.op("add", given, cell.product(states[0], cell.recurrent))
    return (cell.activations[0](cell.clipped(total)),)


def _gru_step(cell: Cell, given: Expr, states: States) -> States:
    """Gates in the order z, r, h."""
    node, (state,) = cell.node, states
    before = node.attr("linear_before_reset", 0)
    f, g = cell.activations[:2]
    size = cell.hidden
    z_and_r = node.op("add", node.slice(given, 1, 0, 2 * size), cell.product(state, _columns(cell, 0, 2)))
    z, r = (f(cell.clipped(cell.gate(z_and_r, index))) for index in (0, 1))
    weight, bias = _columns(cell, 2, 3), cell.recurrent_bias
    if before:
        inner = cell.product(state, weight)
        inner = node.op("multiply", r, inner if bias is None else node.op("add", inner, cell.gate(bias, 2)))
    else:
        inner = cell.product(node.op("multiply", r, state), weight)
    h = g(cell.clipped(node.op("add", cell.gate(given, 2), inner)))
    # (1 - z) * h + z * state
    return (node.op("add", h, node.op("multiply", z, node.op("subtract", state, h))),)


def _columns(cell: Cell, first: int, last: int) -> Expr:
    return cell.node.slice(cell.recurrent, 1, first * cell.hidden, last * cell.hidden)


def _lstm_step(cell: Cell, given: Expr, states: States) -> States:
    """Gates in the order i, o, f, c."""
    node, (state, memory) = cell.node, states
    f, g, h = cell.activations[:3]
    total = node.op("add", given, cell.product(state, cell.recurrent))

    def gate(index: int, looks_at: Expr | None) -> Expr:
        value = cell.gate(total, index)
        if cell.peepholes is not None and looks_at is not None:
            value = node.op("add", value, node.op("multiply", cell.gate(cell.peepholes, index), looks_at))
        return cell.clipped(value)

    keep = f(gate(2, memory))
    take = node.op("subtract", node.full(1, (), node.dtype(keep)), keep) if node.attr("input_forget", 0) else None
    take = f(gate(0, memory)) if take is None else take
    fresh = node.op("add", node.op("multiply", keep, memory), node.op("multiply", take, g(gate(3, None))))
    return node.op("multiply", f(gate(1, fresh)), h(fresh)), fresh


# --- the layer --------------------------------------------------------------------------------------------------------
KINDS: dict[str, tuple[int, int, Step, tuple[str, ...]]] = {
    # gates, states, step, default activations
    "RNN": (1, 1, _rnn_step, ("Tanh",)),
    "GRU": (3, 1, _gru_step, ("Sigmoid", "Tanh")),
    "LSTM": (4, 2, _lstm_step, ("Sigmoid", "Tanh", "Tanh")),
}


@converter("RNN", "GRU", "LSTM", since=7)
def recurrent(node: Node) -> Sequence[Expr]:
    gates, count, step, defaults = KINDS[node.proto.op_type]
    x = node.input(0)
    batch_first = bool(node.attr("layout", 0))
    x = node.permute(x, (1, 0, 2)) if batch_first else x
    steps, batch, _ = node.shape(x)
    run = _unrolled if isinstance(steps, int) and steps <= MAX_STEPS else _looped
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    hidden = node.fixed(node.shape(node.input(2))[-1], "size of its state")
    activations = _activations(node, defaults, directions)
    tracks, finals = [], []
    for index in range(directions):
        backward = index == 1 or node.attr("direction", "forward") == "reverse"
        chosen = activations[index * len(defaults) : (index + 1) * len(defaults)]
        cell = _cell(node, x, index, gates, hidden, chosen)
        states = tuple(_initial(node, 5 + k, index, batch, hidden, x, batch_first) for k in range(count))
        track, states = run(cell, step, states, backward)
        tracks.append(track)
        finals.append(states)
    return _outputs(node, tracks, finals, batch_first)


def _cell(node: Node, x: Expr, index: int, gates: int, hidden: int, activations: list[Activation]) -> Cell:
    weight, recurrent = (node.select(node.input(k), 0, index) for k in (1, 2))
    both = node.optional(3)
    bias = None if both is None else node.select(both, 0, index)
    size = gates * hidden
    # With linear_before_reset the state's bias of gate h is multiplied by r: it must be added step by step.
    apart = node.proto.op_type == "GRU" and bool(node.attr("linear_before_reset", 0))
    recurrent_bias = None
    total = node.op("matmul", x, node.permute(weight, (1, 0)))
    if bias is not None:
        own, others = node.slice(bias, 0, 0, size), node.slice(bias, 0, size, 2 * size)
        if apart:
            recurrent_bias = others
            zeros = node.full(0, (hidden,), node.dtype(x))
            others = node.op("concat", node.slice(others, 0, 0, 2 * hidden), zeros, axis=0)
        total = node.op("add", total, node.op("add", own, others))
    peepholes = node.optional(7) if node.proto.op_type == "LSTM" else None
    return Cell(
        node,
        total,
        node.permute(recurrent, (1, 0)),
        recurrent_bias,
        None if peepholes is None else node.select(peepholes, 0, index),
        activations,
        hidden,
    )


def _unrolled(cell: Cell, step: Step, states: States, backward: bool) -> tuple[Expr, States]:
    """Return the outputs (steps, batch, hidden) in the order of time, and the last states."""
    node = cell.node
    count = node.fixed(node.shape(cell.given)[0], "length of its sequence")
    if count == 0:
        node.reject("its sequence is empty")
    track: list[Expr] = []
    for t in range(count - 1, -1, -1) if backward else range(count):
        given = node.select(cell.given, 0, t)
        states, output = _masked(cell, Constant(np.array(t)), step(cell, given, states), states)
        track.append(output)
    return node.stack(track[::-1] if backward else track, 0), states


def _looped(cell: Cell, step: Step, states: States, backward: bool) -> tuple[Expr, States]:
    """`_unrolled` as a loop of the program."""
    node = cell.node
    steps = node.shape(cell.given)[0]

    def turn(params: Sequence[Var], number: Var, before: Sequence[Var]) -> OutlinedGraph:
        around, node.builder = node.builder, GraphBuilder(node.builder)
        try:
            t = node.op("subtract", node.expr(steps - 1, "int64"), number) if backward else number
            new = step(cell, node.op("take", cell.given, t, axis=0), tuple(before))
            after, output = _masked(cell, t, new, tuple(before))
            return OutlinedGraph(node.builder, tuple(params), [Constant(np.array(True)), *after, output])
        finally:
            node.builder = around

    limit, goes_on = node.expr(steps, "int64"), Constant(np.array(True))
    *last, track = Loop(node, limit, goes_on, states, turn).run()
    track = node.reshape(track, (steps, *node.shape(track)[1:]))
    return node.op("flip", track, axes=(0,)) if backward else track, tuple(last)


def _masked(cell: Cell, t: Expr, new: States, old: States) -> tuple[States, Expr]:
    """States and output of a step. Beyond a sequence's end its states stay, and its output is 0."""
    node, lengths = cell.node, cell.node.optional(4)
    if lengths is None:
        return new, new[0]
    inside = node.op("less", node.reshape(t, (1, 1)), node.along(node.cast(lengths, "int64"), 0, 2))
    states = tuple(node.op("where", inside, a, b) for a, b in zip(new, old, strict=True))
    return states, node.op("where", inside, new[0], node.full(0, (), node.dtype(new[0])))


def _outputs(node: Node, tracks: list[Expr], finals: list[States], batch_first: bool) -> Sequence[Expr]:
    """Y (steps, directions, batch, hidden) and the last states (directions, batch, hidden), or batch first."""
    where = 1 if batch_first else 0
    states = [node.stack(each, where) for each in zip(*finals, strict=True)]
    if not node.has_output(0):
        return [states[0], *states]
    y = node.stack(tracks, 1)
    return [node.permute(y, (2, 0, 1, 3)) if batch_first else y, *states]


def _initial(node: Node, index: int, direction: int, batch: Dim, hidden: int, x: Expr, batch_first: bool) -> Expr:
    given = node.optional(index)
    if given is None:
        return node.full(0, (batch, hidden), node.dtype(x))
    return node.select(given, 1 if batch_first else 0, direction)


# --- activations ------------------------------------------------------------------------------------------------------
def _scaled_tanh(node: Node, x: Expr, alpha: float, beta: float) -> Expr:
    return node.op("multiply", node.op("tanh", node.op("multiply", x, beta)), alpha)


_ACTIVATIONS: dict[str, Callable[[Node, Expr, float | None, float | None], Expr]] = {
    "sigmoid": lambda n, x, a, b: n.op("sigmoid", x),
    "tanh": lambda n, x, a, b: n.op("tanh", x),
    "relu": lambda n, x, a, b: n.op("nn.relu", x),
    "softsign": lambda n, x, a, b: n.op("nn.softsign", x),
    "softplus": lambda n, x, a, b: n.op("nn.softplus", x),
    "hardsigmoid": lambda n, x, a, b: n.op(
        "nn.hard_sigmoid", x, alpha=0.2 if a is None else a, beta=0.5 if b is None else b
    ),
    "leakyrelu": lambda n, x, a, b: n.op("nn.leaky_relu", x, alpha=0.01 if a is None else a),
    "thresholdedrelu": lambda n, x, a, b: n.op("nn.thresholded_relu", x, alpha=1.0 if a is None else a),
    "elu": lambda n, x, a, b: n.op("nn.elu", x, alpha=1.0 if a is None else a),
    "affine": lambda n, x, a, b: n.op("add", n.op("multiply", x, 1.0 if a is None else a), b or 0.0),
    "scaledtanh": lambda n, x, a, b: _scaled_tanh(n, x, 1.0 if a is None else a, 1.0 if b is None else b),
}
_TAKES_ALPHA = ("hardsigmoid", "leakyrelu", "thresholdedrelu", "elu", "affine", "scaledtanh")
_TAKES_BETA = ("hardsigmoid", "affine", "scaledtanh")


def _activations(node: Node, defaults: tuple[str, ...], directions: int) -> list[Activation]:
    """Return one function per activation; alphas and betas are handed out, in order, to those that take them."""
    names = [name.lower() for name in node.attr("activations") or defaults * directions]
    unknown = [name for name in names if name not in _ACTIVATIONS]
    if unknown or len(names) != len(defaults) * directions:
        node.reject(f"its activations {names} are unknown or of the wrong number")
    alphas, betas = iter(node.attr("activation_alpha") or ()), iter(node.attr("activation_beta") or ())
    chosen: list[Activation] = []
    for name in names:
        alpha = next(alphas, None) if name in _TAKES_ALPHA else None
        beta = next(betas, None) if name in _TAKES_BETA else None
        chosen.append(lambda x, f=_ACTIVATIONS[name], a=alpha, b=beta: f(node, x, a, b))
    return chosen
