"""Rules of recurrent layers: what a cell does in one step, inside of a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelyard import dims
from kernelyard.legalize.activation import ACTIVATIONS
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.ops.recurrent import activations_of
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.byte_products import PER_WORD, byte_of
from kernelyard.tir.expr import Expr, binary, cast, const, index, maximum, minimum, select, unary

Function = Callable[[Expr], Expr]
CELL_ACTIVATIONS: dict[str, Callable[[Expr, float, float], Expr]] = {
    "sigmoid": lambda x, a, b: unary("sigmoid", x),
    "tanh": lambda x, a, b: unary("tanh", x),
    "relu": lambda x, a, b: ACTIVATIONS["nn.relu"](x),
    "softsign": lambda x, a, b: ACTIVATIONS["nn.softsign"](x),
    "softplus": lambda x, a, b: ACTIVATIONS["nn.softplus"](x),
    "hard_sigmoid": lambda x, a, b: ACTIVATIONS["nn.hard_sigmoid"](x, a, b),
    "leaky_relu": lambda x, a, b: ACTIVATIONS["nn.leaky_relu"](x, a),
    "thresholded_relu": lambda x, a, b: ACTIVATIONS["nn.thresholded_relu"](x, a),
    "elu": lambda x, a, b: ACTIVATIONS["nn.elu"](x, a),
    "affine": lambda x, a, b: a * x + b,
    "scaled_tanh": lambda x, a, b: a * unary("tanh", b * x),
}


class _Layer:
    """The loop over the steps of a layer. lengths: of the sequences, if they differ; attrs: of the operator."""

    def __init__(self, b: RuleBuilder, gates: Operand, lengths: Operand | None, attrs: dict[str, Any]) -> None:
        self.b = b
        self.gates = gates
        self.lengths = lengths
        self.steps, self.batch, _ = gates.shape
        self.clip: float | None = attrs["clip"]
        self.is_reverse: bool = attrs["reverse"]
        self.functions: list[Function] = [
            lambda x, body=CELL_ACTIVATIONS[name], alpha=alpha, beta=beta: body(x, alpha, beta)
            for name, alpha, beta in activations_of(attrs)
        ]

    def apply_clip(self, x: Expr) -> Expr:
        return x if self.clip is None else minimum(maximum(x, -self.clip), self.clip)

    def product(self, state: Operand | Buffer, weights: Operand) -> Buffer:
        """Return the product of a state (batch, hidden) with weights."""
        hidden, columns = weights.shape
        return self.b.reduce(
            "sum",
            (self.batch, columns),
            (hidden,),
            lambda at, p: state[at[0], p[0]] * weights[p[0], at[1]],
            name="product",
        )

    def run(self, initial: Sequence[Operand], cell: Callable[..., Sequence[Buffer]]) -> tuple[Buffer, ...]:
        """Return the hidden states of all steps, and the last states.

        cell: what the gates are at a number and an index, and the states before the step -> the states after it.
        """
        b, shape = self.b, self.b.results[1].shape  # what the type rule made of the sizes of all operands
        states = [b.compute(shape, lambda *at, x=x: x[at], "state") for x in initial]
        hidden = b.buffer((self.steps, *shape), initial[0].dtype, "hidden")
        with b.steps(self.steps) as step:
            t = index(self.steps) - 1 - step if self.is_reverse else step
            new = cell(lambda n, i, j: self.gates[t, i, j + index(n * shape[1])], *states)
            zero = const(0.0, initial[0].dtype)
            b.store(
                hidden,
                shape,
                lambda i, j: (t, i, j),
                lambda i, j: self._mask(t, i, new[0][i, j], zero),
            )
            for state, after in zip(states, new, strict=True):
                b.store(
                    state,
                    shape,
                    lambda i, j: (i, j),
                    lambda i, j, state=state, after=after: self._mask(t, i, after[i, j], state[i, j]),
                )
        return (hidden, *states)

    def multiply_quantized(
        self, state: Buffer, recurrent: Operand, scale: Operand, zero: Operand, sums: Operand
    ) -> Callable[[Expr, Expr], Expr]:
        """Return the product of a state, quantized now, with 8-bit weights, at a sequence and a column."""
        b, (depth, columns) = self.b, recurrent.shape
        step, origin = _scale_and_zero_point(b, state)
        words = b.compute((self.batch, depth), lambda i, k: _word(state, i, k, step, origin), "words")

        def bytes_of(at: Sequence[Expr], p: Sequence[Expr]) -> Expr:
            parts = [byte_of(words[at[0], p[0]], index(n), "uint8") for n in range(PER_WORD)]
            return (parts[0] + parts[1]) + (parts[2] + parts[3])

        def product_of_bytes(at: Sequence[Expr], p: Sequence[Expr]) -> Expr:
            return byte_of(words[at[0], p[0]], p[1], "uint8") * byte_of(recurrent[p[0], at[1]], p[1], "int8")

        totals = b.reduce("sum", (self.batch,), (depth,), bytes_of, name="totals")
        product = b.reduce("sum", (self.batch, columns), (depth, PER_WORD), product_of_bytes, name="product")

        def real(i: Expr, j: Expr) -> Expr:
            whole = product[i, j] - zero[j] * totals[i] - cast(origin[()], "int32") * sums[j]
            return cast(whole, "float32") * (step[()] * scale[j])

        return real

    def _mask(self, t: Expr, sequence: Expr, inside: Expr, beyond: Expr) -> Expr:
        if self.lengths is None:
            return inside
        return select(t < cast(self.lengths[sequence], "int64"), inside, beyond)


def _scale_and_zero_point(b: RuleBuilder, state: Buffer) -> tuple[Buffer, Buffer]:
    """Return the parameters of a state's 8-bit numbers: the range of all sequences, and 0, is 0 to 255."""

    def extremum(reducer: str) -> Buffer:
        return b.reduce(
            reducer, (), state.shape, lambda at, p: state[p], lambda at: const(0.0, "float32"), name=reducer
        )

    low, high = extremum("min"), extremum("max")

    def step() -> Expr:
        width = (high[()] - low[()]) / 255.0
        return select(width > 0.0, width, 1.0)

    scale = b.compute((), step, "scale")
    return scale, b.compute((), lambda: unary("round", -low[()] / scale[()]), "zero_point")


def _word(state: Buffer, i: Expr, k: Expr, scale: Buffer, origin: Buffer) -> Expr:
    """Return four quantized elements in a word; those beyond the end are 0."""
    size = state.shape[1]

    def byte(n: int) -> Expr:
        place = k * index(PER_WORD) + index(n)
        stored = cast(minimum(unary("round", state[i, place] / scale[()]) + origin[()], 255.0), "int32")
        return stored if dims.floordiv(size, PER_WORD) * PER_WORD == size else select(place < index(size), stored, 0)

    low, second, third, high = (binary("shl", byte(n), 8 * n) for n in range(PER_WORD))
    return (low | second) | (third | high)


Gate = Callable[[int, Expr, Expr], Expr]


@legalize("nn.rnn", widen=True)
def rnn(
    b: RuleBuilder, gates: Operand, recurrent: Operand, hidden: Operand, lengths: Operand | None = None, **attrs: Any
) -> tuple[Buffer, ...]:
    layer = _Layer(b, gates, lengths, attrs)
    (f,) = layer.functions

    def cell(gate: Gate, state: Buffer) -> Sequence[Buffer]:
        product = layer.product(state, recurrent)
        return (b.compute(state.shape, lambda i, j: f(layer.apply_clip(gate(0, i, j) + product[i, j])), "new"),)

    return layer.run([hidden], cell)


@legalize("nn.gru", widen=True)
def gru(
    b: RuleBuilder,
    gates: Operand,
    recurrent: Operand,
    candidate: Operand,
    bias: Operand,
    hidden: Operand,
    lengths: Operand | None = None,
    *,
    linear_before_reset: bool,
    **attrs: Any,
) -> tuple[Buffer, ...]:
    layer = _Layer(b, gates, lengths, attrs)
    f, g = layer.functions

    def cell(gate: Gate, state: Buffer) -> Sequence[Buffer]:
        shape, size = state.shape, index(state.shape[1])
        product = layer.product(state, recurrent)
        if linear_before_reset:
            inner = layer.product(state, candidate)
        else:
            apart = b.compute(
                shape, lambda i, j: f(layer.apply_clip(gate(1, i, j) + product[i, j + size])) * state[i, j], "reset"
            )
            inner = layer.product(apart, candidate)

        def new(i: Expr, j: Expr) -> Expr:
            update = f(layer.apply_clip(gate(0, i, j) + product[i, j]))
            added = inner[i, j] + bias[j]
            if linear_before_reset:
                added = f(layer.apply_clip(gate(1, i, j) + product[i, j + size])) * added
            fresh = g(layer.apply_clip(gate(2, i, j) + added))
            return fresh + update * (state[i, j] - fresh)

        return (b.compute(shape, new, "new"),)

    return layer.run([hidden], cell)


@legalize("nn.lstm", widen=True)
def lstm(
    b: RuleBuilder,
    gates: Operand,
    recurrent: Operand,
    hidden: Operand,
    memory: Operand,
    lengths: Operand | None = None,
    peepholes: Operand | None = None,
    *,
    input_forget: bool,
    **attrs: Any,
) -> tuple[Buffer, ...]:
    layer = _Layer(b, gates, lengths, attrs)

    def product(state: Buffer) -> Callable[[Expr, Expr], Expr]:
        computed = layer.product(state, recurrent)
        return lambda i, j: computed[i, j]

    return layer.run([hidden, memory], _lstm_cell(layer, product, peepholes, is_coupled=input_forget))


@legalize("nn.dynamic_quantize_lstm")
def dynamic_quantize_lstm(
    b: RuleBuilder,
    gates: Operand,
    recurrent: Operand,
    scale: Operand,
    zero: Operand,
    sums: Operand,
    hidden: Operand,
    memory: Operand,
    lengths: Operand | None = None,
    peepholes: Operand | None = None,
    *,
    input_forget: bool,
    **attrs: Any,
) -> tuple[Buffer, ...]:
    layer = _Layer(b, gates, lengths, attrs)

    def product(state: Buffer) -> Callable[[Expr, Expr], Expr]:
        return layer.multiply_quantized(state, recurrent, scale, zero, sums)

    return layer.run([hidden, memory], _lstm_cell(layer, product, peepholes, is_coupled=input_forget))


def _lstm_cell(
    layer: _Layer,
    product_of: Callable[[Buffer], Callable[[Expr, Expr], Expr]],
    peepholes: Operand | None,
    *,
    is_coupled: bool,
) -> Callable[[Gate, Buffer, Buffer], Sequence[Buffer]]:
    """Return the cell of an LSTM. product_of: a state's product with the weights, at a sequence and a column."""
    b = layer.b
    f, g, h = layer.functions

    def cell(gate: Gate, state: Buffer, memory: Buffer) -> Sequence[Buffer]:
        shape = state.shape
        product = product_of(state)

        def total(n: int, i: Expr, j: Expr) -> Expr:
            return gate(n, i, j) + product(i, j + index(n * shape[1]))

        def looking(n: int, i: Expr, j: Expr, row: int, seen: Buffer) -> Expr:
            value = total(n, i, j)
            return f(layer.apply_clip(value if peepholes is None else value + peepholes[row, j] * seen[i, j]))

        def fresh(i: Expr, j: Expr) -> Expr:
            take = looking(0, i, j, 0, memory)
            keep = 1 - take if is_coupled else looking(1, i, j, 1, memory)
            return keep * memory[i, j] + take * g(layer.apply_clip(total(2, i, j)))

        new_memory = b.compute(shape, fresh, "new_memory")
        new = b.compute(shape, lambda i, j: looking(3, i, j, 2, new_memory) * h(new_memory[i, j]), "new")
        return new, new_memory

    return cell
