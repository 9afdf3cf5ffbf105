"""Structure of a match, or of the composite made of it: a convolution and its epilogue, an attention, a norm.

A reading is made of bindings alone, so that a check and codegen read the same. `Refusal` says why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelyard.dims import Shape
from kernelyard.plugins.api import Binding, Call, Constant, Decline, Expr, TupleGetItem, Var
from kernelyard_cudnn.graph import Ints
from kernelyard_cudnn.layout import channels_first, inverse

CONVOLUTIONS = tuple(f"nn.conv{rank}d" for rank in (1, 2, 3))
TRANSPOSED = tuple(f"nn.conv{rank}d_transpose" for rank in (1, 2, 3))
ATTENTION = ("nn.attention", "nn.attention_bias")
NORMS = {"nn.layer_norm": "layer_norm", "nn.rms_norm": "rms_norm"}
BINARY = {"add": "add", "multiply": "mul", "subtract": "sub", "maximum": "max", "minimum": "min"}
COMMUTATIVE = ("add", "multiply", "maximum", "minimum")
UNARY = {
    "nn.relu": "relu",
    "nn.leaky_relu": "leaky_relu",
    "clip": "relu",
    "nn.gelu": "gelu",
    "nn.gelu_tanh": "gelu_approx_tanh",
    "nn.silu": "swish",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "nn.elu": "elu",
    "nn.softplus": "softplus",
}
PERMUTE = "permute_dims"
# Axes of attention as the operator has them, (B, S, N, H), by their numbers in cuDNN: (B, H, S, D).
PLAIN = (0, 2, 1, 3)


class Refusal(Exception):  # noqa: N818  # an answer, not an error
    """The reason why a match is not supported."""

    def __init__(self, code: str, message: str, at: Expr | None = None) -> None:
        super().__init__(message)
        self.answer = Decline(code, message, at=at)


@dataclass(frozen=True)
class Stage:
    """A function of what comes before, perhaps with an operand; order: in which the result lies at that point."""

    call: Call
    mode: str
    operand: Expr | None
    order: Ints
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadConvolution:
    """call: the operator. x, w: as they are stored, in these orders. result: what the last stage gives."""

    call: Call
    x: Expr
    w: Expr
    x_order: Ints
    w_order: Ints
    y_order: Ints
    stages: tuple[Stage, ...]
    result: Call

    @property
    def is_transposed(self) -> bool:
        """True for a transposed convolution."""
        return self.call.op_name in TRANSPOSED

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return self.call.tensor_type.rank - 2


@dataclass(frozen=True)
class View:
    """Queries, keys or values: a tensor, or columns of its last axis; heads and size: that row split into heads."""

    stored: Expr
    order: Ints
    begin: int = 0
    size: int | None = None
    heads: int | None = None

    def attributes(self, role: str) -> dict[str, Any]:
        """Return the reading as attributes of a graph node."""
        row = {} if self.size is None else {"begin": self.begin, "size": self.size}
        return {"role": role, "order": self.order, **row, **({} if self.heads is None else {"heads": self.heads})}


@dataclass(frozen=True)
class ReadAttention:
    """call: the operator. lengths: how many keys each example has, where that is what the bias says."""

    call: Call
    views: Mapping[str, View]
    order: Ints
    bias: Expr | None
    lengths: Expr | None


class Chain:
    """The calls of a group, in order: some before its anchor, the anchor, and those that follow it one by one."""

    def __init__(self, bindings: Sequence[Binding], anchors: Sequence[str]) -> None:
        self.made: dict[Expr, Expr] = {binding.var: binding.value for binding in bindings}
        place = next(i for i, b in enumerate(bindings) if isinstance(b.value, Call) and b.value.op_name in anchors)
        self.root: Var = bindings[place].var
        anchor = bindings[place].value
        assert isinstance(anchor, Call)
        self.anchor: Call = anchor
        self.following = [(b.var, b.value) for b in bindings[place + 1 :] if isinstance(b.value, Call)]

    def call(self, expr: Expr, op: str) -> Call | None:
        """Return the call of that operator which makes a value inside the group."""
        value = self.made.get(expr)
        return value if isinstance(value, Call) and value.op_name == op else None

    def strip_permutation(self, expr: Expr, rank: int) -> tuple[Expr, Ints]:
        """Return a value below a permutation, and the order of its axes in memory."""
        permuted = self.call(expr, PERMUTE)
        return (expr, channels_first(rank)) if permuted is None else (permuted.args[0], inverse(permuted.attrs["axes"]))


# --- convolutions -----------------------------------------------------------------------------------------------------
def read_convolution(bindings: Sequence[Binding]) -> ReadConvolution:
    """Read the bindings of a convolution composite. Raises: Refusal."""
    chain = Chain(bindings, (*CONVOLUTIONS, *TRANSPOSED))
    rank = chain.anchor.tensor_type.rank
    (x, x_order), (w, w_order) = (chain.strip_permutation(operand, rank) for operand in chain.anchor.args)
    order, current, result = channels_first(rank), chain.root, chain.anchor
    stages: list[Stage] = []
    for var, call in chain.following:
        if call.op_name == PERMUTE:
            order = tuple(order[axis] for axis in call.attrs["axes"])
        else:
            stages.append(_stage(call, current, order, chain))
        current, result = var, call
    return ReadConvolution(chain.anchor, x, w, x_order, w_order, order, tuple(stages), result)


def plain_convolution(call: Call) -> ReadConvolution:
    """Return a convolution by itself."""
    x, w = call.args
    order = channels_first(call.tensor_type.rank)
    return ReadConvolution(call, x, w, order, order, order, (), call)


def _stage(call: Call, x: Expr, order: Ints, chain: Chain) -> Stage:
    if call.op_name in UNARY:
        return Stage(call, UNARY[call.op_name], None, order, _parameters(call))
    others = [operand for operand in call.args if operand is not x]
    if len(others) != 1:
        raise Refusal("operand", f"{call.op_name} of a value with itself", x)
    if others[0] in chain.made:
        raise Refusal("operand", f"{call.op_name} reads a value from inside its own group", others[0])
    if call.args[0] is not x and call.op_name not in COMMUTATIVE:
        raise Refusal("operand", f"{call.op_name} has the convolution on its right", x)
    return Stage(call, BINARY[call.op_name], _for_each_channel(others[0], order, chain), order)


def _for_each_channel(operand: Expr, order: Ints, chain: Chain) -> Expr:
    """Return one number for all channels, to which equal ones are folded, as a number for each: engines know such a
    bias.
    """
    channels = chain.anchor.tensor_type.shape[1]
    if not isinstance(operand, Constant) or operand.data.size != 1 or not isinstance(channels, int):
        return operand
    shape = [channels if axis == 1 else 1 for axis in order]
    return Constant(np.full(shape, operand.data.reshape(()), operand.data.dtype))


def _parameters(call: Call) -> dict[str, float]:
    if call.op_name == "nn.leaky_relu":
        return {"negative_slope": call.attrs["alpha"]}
    if call.op_name == "nn.elu" and call.attrs["alpha"] != 1:
        raise Refusal("attribute", f"an elu with alpha {call.attrs['alpha']:g}; cuDNN's has 1")
    if call.op_name == "clip":
        least, most = call.attrs["min"], call.attrs["max"]
        if least != 0 or (most is not None and most < 0):
            raise Refusal("attribute", f"a clip to {least} and {most}; cuDNN's begins at 0")
        return {"lower_clip": 0.0, **({} if most is None else {"upper_clip": float(most)})}
    return {}


# --- attention --------------------------------------------------------------------------------------------------------
def read_attention(bindings: Sequence[Binding]) -> ReadAttention:
    """Read the bindings of an attention composite. Raises: Refusal."""
    chain = Chain(bindings, ATTENTION)
    queries, keys, values, *bias = chain.anchor.args
    views = {name: _view(operand, chain) for name, operand in zip("qkv", (queries, keys, values), strict=True)}
    order = PLAIN
    for _, call in chain.following:
        order = tuple(order[axis] for axis in call.attrs["axes"])
    if any(each[-1] != PLAIN[-1] for each in (order, *(view.order for view in views.values()))):
        raise Refusal("layout", "the elements of a head are not contiguous")
    lengths = _lengths(bias[0], chain) if bias and bias[0] in chain.made else None
    return ReadAttention(chain.anchor, views, order, bias[0] if bias and lengths is None else None, lengths)


def _view(operand: Expr, chain: Chain) -> View:
    stored, order = chain.strip_permutation(operand, 4)
    order = tuple(PLAIN[axis] for axis in order)
    size = heads = None
    reshaped = chain.call(stored, "reshape")
    if reshaped is not None:
        stored, (heads, size) = reshaped.args[0], _split_heads(reshaped)
    piece = chain.made.get(stored)
    if piece is None:
        return View(stored, order, 0, size, heads)
    source, begin, width = _piece(piece, chain)
    if size is None:
        size = width
    return View(source, order, begin, size, heads)


def _split_heads(reshape: Call) -> tuple[int, int]:
    """Return N and H of a reshape from (B, S, N * H) to (B, S, N, H). Raises: Refusal for others."""
    before, after = reshape.args[0].tensor_type.shape, reshape.tensor_type.shape
    heads, size = after[-2:]
    if not isinstance(heads, int) or not isinstance(size, int):
        raise Refusal("dynamic-shape", f"heads and their size must be known, found {heads} and {size}", reshape)
    if before != (*after[:-2], heads * size):
        raise Refusal("layout", f"a reshape from {before} to {after} does more than to split rows", reshape)
    return heads, size


def _piece(value: Expr, chain: Chain) -> tuple[Expr, int, int]:
    """Return the source of a piece of a stacked tensor, its begin on the last axis, and its width."""
    if isinstance(value, TupleGetItem):
        split = chain.made.get(value.tuple_value)
        assert isinstance(split, Call)
        begin, axis, step = sum(split.attrs["sections"][: value.index]), split.attrs["axis"], 1
        source, width = split.args[0], split.attrs["sections"][value.index]
    else:
        assert isinstance(value, Call)
        (source,), attrs = value.args, value.attrs
        if len(attrs["axes"]) != 1:
            raise Refusal("attribute", f"a slice of axes {attrs['axes']}; pieces are cut along one", value)
        (axis,), (begin,), (step,) = attrs["axes"], attrs["begin"], attrs["strides"]
        width = value.tensor_type.shape[axis]
    rank = source.tensor_type.rank
    if axis != rank - 1 or step != 1:
        raise Refusal(
            "attribute", f"pieces along axis {axis} of {rank} with step {step}; the last one is needed", source
        )
    if not isinstance(begin, int) or not isinstance(width, int):
        raise Refusal("dynamic-shape", f"the bounds of a slice must be known, found {begin} and {width}", source)
    return source, begin, width


def _lengths(mask: Expr, chain: Chain) -> Expr:
    """Return the lengths in `where(positions < lengths, 0, -inf)`."""
    where = chain.made[mask]
    assert isinstance(where, Call)
    less = chain.made[where.args[0]]
    assert isinstance(less, Call)
    positions, lengths = less.args
    kept, masked = where.args[1:]
    constants = (positions, kept, masked)
    if not all(isinstance(each, Constant) for each in constants):
        raise Refusal("operand", "a mask whose values are not constant", mask)
    counted, zero, least = (each.data for each in constants if isinstance(each, Constant))
    columns = counted.size
    if counted.shape[-1:] != (columns,) or not np.array_equal(counted.reshape(-1), np.arange(columns)):
        raise Refusal("operand", "positions that do not start at 0", positions)
    if np.any(zero != 0) or not np.all(np.isneginf(least.astype(np.float32))):
        raise Refusal("operand", "a mask that is not 0 and minus infinity", mask)
    return lengths


def text(shape: Shape) -> str:
    """Return a shape for people."""
    return f"({', '.join(map(str, shape))})"
