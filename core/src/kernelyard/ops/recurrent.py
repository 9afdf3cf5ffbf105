"""Recurrent layers in one direction: LSTM, GRU and RNN over the gates' products with the inputs.

Sizes: T steps, B sequences, H hidden elements, G gates. The product of all inputs with the input weights is computed
before, and the biases are added: an operand (T, B, G * H), time-major. The operator does what is left: in each step it
adds the product of the state with the recurrent weights, and computes the new state. It returns the hidden states of
all steps (T, B, H), in the order of time, and the last states (B, H).

Gates are in oneDNN's order: input, forget, candidate, output of an LSTM; update, reset, candidate of a GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, TupleType, Type, tensors_of
from kernelyard.ops.activation import ACTIVATIONS
from kernelyard.ops.declaration import declare
from kernelyard.ops.numeric import sigmoid
from kernelyard.ops.samples import floats
from kernelyard.ops.type_rules import require, require_dtype, require_rank, require_same_dtype, unify

# name: (reference of x, alpha and beta; default alpha and beta)
CellActivation = tuple[Callable[[np.ndarray, float, float], np.ndarray], float, float]
CELL_ACTIVATIONS: dict[str, CellActivation] = {
    "sigmoid": (lambda x, a, b: sigmoid(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "relu": (lambda x, a, b: np.maximum(x, 0), 0.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: ACTIVATIONS["nn.softplus"][0](x), 0.0, 0.0),
    "hard_sigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leaky_relu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, 0.0),
    "thresholded_relu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, 0.0),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "scaled_tanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
}
LENGTH_DTYPES = ("int32", "int64")


def recurrent_attributes(*activations: str, **more: Attribute) -> dict[str, Attribute]:
    return {
        "reverse": Attribute("bool", False),
        "activations": Attribute("strs", activations),
        "alpha": Attribute("floats", ()),
        "beta": Attribute("floats", ()),
        "clip": Attribute("float", None),
        **more,
    }


def activations_of(attrs: Attributes) -> list[tuple[str, float, float]]:
    """Return each activation's name, alpha and beta; where none are given, its defaults."""
    names = attrs["activations"]
    alphas = attrs["alpha"] or [CELL_ACTIVATIONS[name][1] for name in names]
    betas = attrs["beta"] or [CELL_ACTIVATIONS[name][2] for name in names]
    return list(zip(names, alphas, betas, strict=True))


# --- types ------------------------------------------------------------------------------------------------------------
def _layer_type(
    gates: TensorType,
    weights: Sequence[tuple[TensorType, int]],
    states: Sequence[TensorType],
    attrs: Attributes,
    count: int,
) -> tuple[Dim, TupleType]:
    """Return the hidden size and the result's type. weights: with how many gates each has; count: activations."""
    for type_, rank, what in ((gates, 3, "the gates"), *((w, 2, "the weights") for w, _ in weights)):
        require_rank(type_, rank, what)
    require_dtype(gates, FLOATS)
    require_same_dtype((gates, *(w for w, _ in weights), *states))
    steps, batch, columns = gates.shape
    hidden = weights[0][0].shape[0]
    unify(columns, hidden * sum(number for _, number in weights), "the gates")
    for weight, number in weights:
        unify(weight.shape[0], hidden, "the rows of the recurrent weights")
        unify(weight.shape[1], hidden * number, "the columns of the recurrent weights")
    for state in states:
        require_rank(state, 2, "the initial state")
        batch = unify(batch, state.shape[0], "the sequences of gates and states")
        unify(state.shape[1], hidden, "the sizes of states and weights")
    _check_activations(attrs, count)
    last = TensorType((batch, hidden), gates.dtype)
    return hidden, TupleType((TensorType((steps, batch, hidden), gates.dtype), *(last for _ in states)))


def _check_activations(attrs: Attributes, count: int) -> None:
    names = attrs["activations"]
    unknown = [name for name in names if name not in CELL_ACTIVATIONS]
    require(not unknown, "unknown activation", found=", ".join(unknown), expected=", ".join(CELL_ACTIVATIONS))
    require(len(names) == count, "wrong number of activations", found=len(names), expected=count)
    for name in ("alpha", "beta"):
        given = len(attrs[name])
        require(given in (0, count), f"{name} is given for some activations", found=given, expected=f"0 or {count}")


def _check_lengths(types: Sequence[TensorType], gates: TensorType) -> None:
    for lengths in types:
        require_rank(lengths, 1, "the lengths")
        require_dtype(lengths, LENGTH_DTYPES, "the lengths")
        unify(lengths.shape[0], gates.shape[1], "the lengths and the sequences")


def lstm_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    gates, recurrent, *states = types[:4]
    hidden, result = _layer_type(gates, [(recurrent, 4)], states, attrs, 3)
    _check_lengths(types[4:5], gates)
    for peepholes in types[5:]:
        require_same_dtype((gates, peepholes))
        require_rank(peepholes, 2, "the peepholes")
        unify(peepholes.shape[0], 3, "the peepholes' gates")
        unify(peepholes.shape[1], hidden, "the sizes of peepholes and weights")
    return result


def _gru_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    gates, recurrent, candidate, bias, state = types[:5]
    hidden, result = _layer_type(gates, [(recurrent, 2), (candidate, 1)], [state], attrs, 2)
    require_same_dtype((gates, bias))
    require_rank(bias, 1, "the candidate's bias")
    unify(bias.shape[0], hidden, "the sizes of bias and weights")
    _check_lengths(types[5:], gates)
    return result


def _rnn_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    gates, recurrent, state = types[:3]
    _check_lengths(types[3:], gates)
    return _layer_type(gates, [(recurrent, 1)], [state], attrs, 1)[1]


def recurrent_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    hidden = tensors_of(result)[0].shape[2]
    return 2 * dims.product(types[0].shape) * (hidden + 4)


# --- references -------------------------------------------------------------------------------------------------------
States = Sequence[np.ndarray]
Cell = Callable[..., States]
Function = Callable[[np.ndarray], np.ndarray]
Reference = Callable[..., tuple[np.ndarray, ...]]


def _functions(attrs: Attributes) -> list[Function]:
    def function(name: str, alpha: float, beta: float) -> Function:
        return lambda x: CELL_ACTIVATIONS[name][0](x, alpha, beta)

    return [function(*each) for each in activations_of(attrs)]


def _clip(x: np.ndarray, attrs: Attributes) -> np.ndarray:
    return x if attrs["clip"] is None else np.clip(x, -attrs["clip"], attrs["clip"])


def _run(
    cell: Cell, gates: np.ndarray, states: States, lengths: np.ndarray | None, attrs: Attributes
) -> tuple[np.ndarray, ...]:
    """Run a cell over all steps. Beyond a sequence's length its states stay, and its hidden states are 0."""
    hidden = np.zeros((*gates.shape[:2], states[0].shape[1]))
    for t in reversed(range(len(gates))) if attrs["reverse"] else range(len(gates)):
        inside = np.array(True) if lengths is None else (t < lengths)[:, None]
        new = cell(gates[t], *states)
        hidden[t] = np.where(inside, new[0], 0)
        states = [np.where(inside, a, b) for a, b in zip(new, states, strict=True)]
    return (hidden, *states)


def in_float64(reference: Reference) -> Reference:
    """Wrap a reference so that it is computed in float64 and rounded once, not at every step."""

    def run(*arrays: np.ndarray, **attrs: object) -> tuple[np.ndarray, ...]:
        wide = (a if a.dtype.kind in "iu" else a.astype(np.float64) for a in arrays)
        return tuple(result.astype(arrays[0].dtype) for result in reference(*wide, **attrs))

    return run


def _lstm(
    gates: np.ndarray,
    recurrent: np.ndarray,
    hidden: np.ndarray,
    memory: np.ndarray,
    lengths: np.ndarray | None = None,
    peepholes: np.ndarray | None = None,
    **attrs: object,
) -> tuple[np.ndarray, ...]:
    return run_lstm(lambda state: state @ recurrent, gates, (hidden, memory), lengths, peepholes, attrs)


def run_lstm(
    product: Callable[[np.ndarray], np.ndarray],
    gates: np.ndarray,
    states: States,
    lengths: np.ndarray | None,
    peepholes: np.ndarray | None,
    attrs: Attributes,
) -> tuple[np.ndarray, ...]:
    f, g, h = _functions(attrs)

    def gate(x: np.ndarray, number: int, seen: np.ndarray) -> np.ndarray:
        return f(_clip(x if peepholes is None else x + peepholes[number] * seen, attrs))

    def cell(given: np.ndarray, state: np.ndarray, memory: np.ndarray) -> States:
        taken, kept, candidate, shown = np.split(given + product(state), 4, axis=1)
        take = gate(taken, 0, memory)
        keep = 1 - take if attrs["input_forget"] else gate(kept, 1, memory)
        fresh = keep * memory + take * g(_clip(candidate, attrs))
        return gate(shown, 2, fresh) * h(fresh), fresh

    return _run(cell, gates, states, lengths, attrs)


def _gru(
    gates: np.ndarray,
    recurrent: np.ndarray,
    candidate: np.ndarray,
    bias: np.ndarray,
    hidden: np.ndarray,
    lengths: np.ndarray | None = None,
    **attrs: object,
) -> tuple[np.ndarray, ...]:
    f, g = _functions(attrs)
    size = 2 * hidden.shape[1]

    def cell(given: np.ndarray, state: np.ndarray) -> States:
        update, reset = np.split(f(_clip(given[:, :size] + state @ recurrent, attrs)), 2, axis=1)
        if attrs["linear_before_reset"]:
            inner = reset * (state @ candidate + bias)
        else:
            inner = (reset * state) @ candidate + bias
        return (update * state + (1 - update) * g(_clip(given[:, size:] + inner, attrs)),)

    return _run(cell, gates, (hidden,), lengths, attrs)


def _rnn(
    gates: np.ndarray, recurrent: np.ndarray, hidden: np.ndarray, lengths: np.ndarray | None = None, **attrs: object
) -> tuple[np.ndarray, ...]:
    (f,) = _functions(attrs)

    def cell(given: np.ndarray, state: np.ndarray) -> States:
        return (f(_clip(given + state @ recurrent, attrs)),)

    return _run(cell, gates, (hidden,), lengths, attrs)


# --- samples ----------------------------------------------------------------------------------------------------------
SAMPLE_LENGTHS = np.array([4, 0, 2])
Operands = tuple[np.ndarray, ...]
MakeOperands = Callable[..., Operands]


def lstm_operands(steps: int = 4, batch: int = 3, hidden: int = 5, dtype: str = "float32") -> Operands:
    shapes = (steps, batch, 4 * hidden), (hidden, 4 * hidden), (batch, hidden), (batch, hidden)
    return tuple(floats(*shape, dtype=dtype, low=-1, high=1, seed=n) for n, shape in enumerate(shapes))


def _gru_operands(steps: int = 4, batch: int = 3, hidden: int = 5, dtype: str = "float32") -> Operands:
    shapes = (steps, batch, 3 * hidden), (hidden, 2 * hidden), (hidden, hidden), (hidden,), (batch, hidden)
    return tuple(floats(*shape, dtype=dtype, low=-1, high=1, seed=n) for n, shape in enumerate(shapes))


def _rnn_operands(steps: int = 4, batch: int = 3, hidden: int = 5, dtype: str = "float32") -> Operands:
    shapes = (steps, batch, hidden), (hidden, hidden), (batch, hidden)
    return tuple(floats(*shape, dtype=dtype, low=-1, high=1, seed=n) for n, shape in enumerate(shapes))


def _samples(make: MakeOperands, count: int) -> Iterator[Sample]:
    yield Sample(make(), label="plain")
    yield Sample(make(3, 1, 16), {"reverse": True}, "in reverse")
    yield Sample((*make(), SAMPLE_LENGTHS), label="lengths")
    yield Sample((*make(), SAMPLE_LENGTHS.astype(np.int32)), {"reverse": True}, "lengths in reverse")
    yield Sample(make(1, 2, 33), {"clip": 0.3}, "one step, clipped")
    yield Sample(make(0), label="no step")
    names = list(CELL_ACTIVATIONS)
    for start in range(0, len(names), count):
        chosen = (names[start:] + names)[:count]
        yield Sample(make(), {"activations": chosen}, ", ".join(chosen))
    chosen = {"activations": ("hard_sigmoid", "scaled_tanh", "elu")[:count]}
    yield Sample(
        make(), {**chosen, "alpha": (0.3, 1.5, 0.7)[:count], "beta": (0.4, 0.6, 0.0)[:count]}, "alpha and beta"
    )
    for dtype in ("float64", "float16"):
        yield Sample(make(dtype=dtype), label=dtype)


def _lstm_samples() -> Iterator[Sample]:
    yield from _samples(lstm_operands, 3)
    peepholes = floats(3, 5, seed=9)
    yield Sample((*lstm_operands(), SAMPLE_LENGTHS, peepholes), label="peepholes")
    yield Sample((*lstm_operands(), SAMPLE_LENGTHS, peepholes), {"input_forget": True}, "input and forget gate coupled")


def _gru_samples() -> Iterator[Sample]:
    yield from _samples(_gru_operands, 2)
    yield Sample(_gru_operands(), {"linear_before_reset": True}, "linear before reset")


LSTM_GATES = " (input, forget, candidate, output)"
GRU_GATES = " (update, reset, candidate: the new state is update * state + (1 - update) * candidate)"
_SUMMARY = (
    "over gates (T, B, {}), the inputs' products with their weights{}; gives all hidden states, and the last states"
)

declare(
    "nn.lstm",
    ("gates", "recurrent", "hidden", "memory", "lengths", "peepholes"),
    lstm_type,
    in_float64(_lstm),
    attributes=recurrent_attributes("sigmoid", "tanh", "tanh", input_forget=Attribute("bool", False)),
    samples=_lstm_samples,
    flops=recurrent_flops,
    widen=True,
    optional_inputs=2,
    summary=f"an LSTM in one direction, {_SUMMARY.format('4 * H', LSTM_GATES)}",
)
declare(
    "nn.gru",
    ("gates", "recurrent", "candidate", "bias", "hidden", "lengths"),
    _gru_type,
    in_float64(_gru),
    attributes=recurrent_attributes("sigmoid", "tanh", linear_before_reset=Attribute("bool", False)),
    samples=_gru_samples,
    flops=recurrent_flops,
    widen=True,
    optional_inputs=1,
    summary=f"a GRU in one direction, {_SUMMARY.format('3 * H', GRU_GATES)}",
)
declare(
    "nn.rnn",
    ("gates", "recurrent", "hidden", "lengths"),
    _rnn_type,
    in_float64(_rnn),
    attributes=recurrent_attributes("tanh"),
    samples=lambda: _samples(_rnn_operands, 1),
    flops=recurrent_flops,
    widen=True,
    optional_inputs=1,
    summary=f"a recurrent layer in one direction, {_SUMMARY.format('H', '')}",
)
