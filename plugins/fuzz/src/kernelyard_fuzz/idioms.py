"""Idioms: several operators that mean one, or that passes move, as frontends write them and as nobody does.

Random operators hardly ever form them. Numbers in them are now and then not quite those of the idiom, operands come in
any order, and later operators may read what is in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernelyard.ir import Constant, Expr, Var, get_op
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.sketch import Sketch

COMMUTATIVE = ("add", "multiply", "maximum", "minimum")
UNIT = Interval(0.25, 2.0)


class RefusedError(Exception):
    """An operator does not take these operands; what was made before it stays."""


class Writer:
    """Writes operators into a sketch, with numbers that may be off and operands in any order."""

    def __init__(self, chooser: Chooser, sketch: Sketch) -> None:
        self.chooser, self.sketch = chooser, sketch

    def op(self, name: str, *args: Expr | float, **attrs: Any) -> Var:
        """Add an operator. Raises: RefusedError."""
        operands = [arg if isinstance(arg, Expr) else self.number(arg) for arg in args]
        if name in COMMUTATIVE and self.chooser.chance(50):
            operands.reverse()
        made = self.sketch.op(name, *operands, **attrs)
        if made is None:
            raise RefusedError(name)
        return made

    def number(self, value: float) -> Constant:
        """Return a number as a constant, one in ten near it or its negative."""
        if self.chooser.chance(10):
            value = self.chooser.pick((value * 1.02, -value, value + 1, 0.0, 1.0))
        return Constant(np.asarray(value, np.float32))

    def vector(self, size: int, rank: int, axis: int) -> Constant:
        """Return one number for each element of an axis, as a constant that broadcasts; now and then one for all."""
        shape = [1] * rank
        if not self.chooser.chance(15):
            shape[axis] = size
        while len(shape) > 1 and shape[0] == 1 and self.chooser.chance(30):
            del shape[0]
        array = bins.array_in(self.chooser, tuple(shape), "float32", UNIT)
        if self.chooser.chance(10):
            array.reshape(-1)[:1] = 0
        return Constant(array * np.float32(self.chooser.pick((1.0, -1.0))))

    def weights(self, *shape: int) -> Expr:
        """Return weights: a constant, now and then a parameter."""
        array = bins.array_in(self.chooser, shape, "float32", Interval(-1.0, 1.0))
        return self.sketch.input(array) if self.chooser.chance(15) else Constant(array)

    def of_rank(self, x: Var, rank: int) -> Var:
        """Return a value's elements in that many axes, the first of them 1 where there are too few."""
        sizes = [int(size) for size in x.tensor_type.shape]  # pyright: ignore[reportArgumentType]
        if len(sizes) == rank:
            return x
        if len(sizes) > rank:
            sizes = [math.prod(sizes[: len(sizes) - rank + 1]), *sizes[len(sizes) - rank + 1 :]]
        return self.op("reshape", x, shape=(*[1] * (rank - len(sizes)), *sizes))


Idiom = Callable[[Writer, Var], object]


# --- activations and arithmetic ---------------------------------------------------------------------------------------
def _gelu(w: Writer, x: Var) -> Var:
    inner = w.op("multiply", x, 1 / math.sqrt(2)) if w.chooser.chance(50) else w.op("divide", x, math.sqrt(2))
    gate = w.op("add", w.op("erf", inner), 1.0)
    if w.chooser.chance(50):
        return w.op("multiply", w.op("multiply", x, 0.5), gate)
    return w.op("multiply", w.op("multiply", x, gate), 0.5)


def _gelu_tanh(w: Writer, x: Var) -> Var:
    cube = w.op("multiply", w.op("multiply", x, x), x) if w.chooser.chance(50) else w.op("power", x, 3.0)
    inner = w.op("multiply", w.op("add", x, w.op("multiply", cube, 0.044715)), math.sqrt(2 / math.pi))
    return w.op("multiply", w.op("multiply", x, 0.5), w.op("add", w.op("tanh", inner), 1.0))


def _sigmoid(w: Writer, x: Var) -> Var:
    bottom = w.op("add", w.op("exp", w.op("negative", x)), 1.0)
    return w.op("divide", x if w.chooser.chance(50) else w.number(1.0), bottom)


def _gated(w: Writer, x: Var) -> Var:
    gate = w.chooser.pick(("sigmoid", "tanh", "nn.softplus", "nn.hard_sigmoid"))
    return w.op("multiply", x, w.op(gate, x))


def _mish(w: Writer, x: Var) -> Var:
    softplus = w.op("nn.softplus", x) if w.chooser.chance(50) else w.op("log", w.op("add", w.op("exp", x), 1.0))
    return w.op("multiply", x, w.op("tanh", softplus))


def _softsign(w: Writer, x: Var) -> Var:
    return w.op("divide", x, w.op("add", w.op("abs", x), 1.0))


def _hard(w: Writer, x: Var) -> Var:
    clipped = w.op("clip", w.op("add", x, 3.0), min=0.0, max=w.chooser.pick((6.0, 1.0)))
    gate = w.op("divide", clipped, 6.0) if w.chooser.chance(50) else w.op("multiply", clipped, 1 / 6)
    return w.op("multiply", x, gate) if w.chooser.chance(60) else gate


def _numbers(w: Writer, x: Var) -> Var:
    """Numbers one after the other, which become fewer."""
    for _ in range(w.chooser.between(2, 4)):
        name = w.chooser.pick(("add", "multiply", "subtract", "divide", "maximum", "minimum", "power"))
        value = w.chooser.pick((0.0, 1.0, 2.0, -1.0, 0.5, 1e-39, math.inf) if name != "power" else (0.5, 1.0, 2.0, 3.0))
        is_first = name in ("subtract", "divide") and w.chooser.chance(25)
        x = w.op(name, w.number(value), x) if is_first else w.op(name, x, value)
    return x


def _with_itself(w: Writer, x: Var) -> Var:
    name = w.chooser.pick(("add", "multiply", "subtract", "maximum", "minimum"))
    other = w.op("negative", x) if w.chooser.chance(40) else x
    return w.op(name, x, other)


def _unary_twice(w: Writer, x: Var) -> Var:
    names = ("negative", "abs", "nn.relu", "floor", "exp", "log", "sqrt", "square", "sign", "tanh")
    return w.op(w.chooser.pick(names), w.op(w.chooser.pick(names), x))


# --- movement ---------------------------------------------------------------------------------------------------------
def _slices(w: Writer, x: Var) -> Var:
    """Slices of slices."""
    for _ in range(w.chooser.between(2, 3)):
        sizes = [int(size) for size in x.tensor_type.shape]  # pyright: ignore[reportArgumentType]
        axes = tuple(axis for axis in range(len(sizes)) if sizes[axis] > 1 and w.chooser.chance(60))
        if not axes:
            raise RefusedError("strided_slice")
        begin = tuple(w.chooser.below(sizes[axis] - 1) for axis in axes)
        end = tuple(w.chooser.between(low + 1, sizes[axis]) for axis, low in zip(axes, begin, strict=True))
        strides = tuple(w.chooser.pick((1, 1, 1, 2)) for _ in axes)
        x = w.op("strided_slice", x, axes=axes, begin=begin, end=end, strides=strides)
    return x


def _permutations(w: Writer, x: Var) -> Var:
    for _ in range(2):
        left = list(range(x.tensor_type.rank))
        axes = tuple(left.pop(w.chooser.below(len(left))) for _ in range(x.tensor_type.rank))
        x = w.op("permute_dims", x, axes=axes)
        if w.chooser.chance(40):
            x = w.op(w.chooser.pick(("nn.relu", "negative", "sigmoid")), x)
    return x


def _reshaped(w: Writer, x: Var) -> Var:
    """A value reshaped, something with a number or a vector of the last axis, and reshaped back."""
    shape = x.tensor_type.shape
    rank = w.chooser.between(1, 3)
    y = w.of_rank(x, rank) if rank < len(shape) else w.op("reshape", x, shape=(1, *shape))
    size = int(y.tensor_type.shape[-1])  # pyright: ignore[reportArgumentType]
    for _ in range(w.chooser.between(1, 2)):
        other = w.vector(size, w.chooser.between(1, 2), -1) if w.chooser.chance(70) else w.number(0.5)
        y = w.op(w.chooser.pick(("add", "multiply", "subtract")), y, other)
    return w.op("reshape", y, shape=shape)


def _split(w: Writer, x: Var) -> Var:
    """Pieces joined again, some of them changed."""
    axis = w.chooser.below(x.tensor_type.rank)
    size = int(x.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
    at = w.chooser.below(size + 1)
    ends = ((0, at), (at, size)) if w.chooser.chance(70) else ((at, size), (0, at))
    pieces = [w.op("strided_slice", x, axes=(axis,), begin=(a,), end=(b,), strides=(1,)) for a, b in ends]
    if w.chooser.chance(50):
        pieces[0] = w.op("nn.relu", pieces[0])
    return w.op("concat", *pieces, axis=axis)


# --- linear operators and what is around them -------------------------------------------------------------------------
def _scaled_linear(w: Writer, x: Var) -> Var:
    """Scales and shifts of channels before and after products and convolutions, which constants take up."""
    is_image = w.chooser.chance(50)
    x = w.of_rank(x, 4 if is_image else w.chooser.between(2, 3))
    axis = 1 if is_image else -1
    for _ in range(w.chooser.between(1, 2)):
        channels = int(x.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
        x = _affine(w, x, channels, axis)
        count = w.chooser.pick((1, 3, 4, 8))
        if is_image:
            kernel = w.chooser.pick((1, 3))
            x = w.op("nn.conv2d", x, w.weights(count, channels, kernel, kernel), padding=(kernel // 2,) * 4)
        else:
            x = w.op("matmul", x, w.weights(channels, count))
        x = _affine(w, x, count, axis)
        if w.chooser.chance(40):
            other = w.op(w.chooser.pick(("nn.relu", "negative", "nn.leaky_relu")), x)
            x = w.op("add", x, other) if w.chooser.chance(50) else other
            x = _affine(w, x, count, axis)
    return x


def _affine(w: Writer, x: Var, channels: int, axis: int) -> Var:
    for name in ("multiply", "add", "divide", "subtract"):
        if w.chooser.chance(35):
            x = w.op(name, x, w.vector(channels, x.tensor_type.rank, axis))
    return x


def _padded(w: Writer, x: Var) -> Var:
    """A padded image under a window."""
    x = w.of_rank(x, 4)
    if w.chooser.chance(50):
        x = (
            w.op(w.chooser.pick(("nn.relu", "sigmoid")), x)
            if w.chooser.chance(70)
            else w.op("clip", x, min=0.0, max=6.0)
        )
    before, after = ((0, 0, *(w.chooser.below(3) for _ in range(2))) for _ in range(2))
    value = w.chooser.pick((0.0, 0.0, -math.inf, 0.5))
    (padded,) = w.sketch.apply(get_op("pad"), [x], {"pads": (*before, *after), "value": value}, largest=math.inf)
    try:
        return _window(w, padded, int(x.tensor_type.shape[1]))  # pyright: ignore[reportArgumentType]
    finally:
        if math.isinf(value):  # nothing else reads it
            del w.sketch.arrays[padded]


def _window(w: Writer, padded: Var, channels: int) -> Var:
    own = tuple(w.chooser.below(2) for _ in range(4))
    kind = w.chooser.below(3)
    if kind == 0:
        return w.op("nn.conv2d", padded, w.weights(2, channels, 2, 3), padding=own)
    window: dict[str, Any] = {"pool_size": w.chooser.pick(((2, 2), (3, 3), (2, 3))), "padding": own}
    window |= {"strides": w.chooser.pick(((1, 1), (2, 2), (1, 2)))}
    if kind == 1:
        return w.op("nn.max_pool2d", padded, dilation=w.chooser.pick(((1, 1), (1, 1), (2, 1))), **window)
    return w.op("nn.avg_pool2d", padded, count_include_pad=w.chooser.chance(50), **window)


def _normalised(w: Writer, x: Var) -> Var:
    """A norm written out, over the last axis."""
    axes = (x.tensor_type.rank - 1,)
    centred = w.op("subtract", x, w.op("mean", x, axes=axes, keepdims=True))
    variance = w.op("mean", w.op("multiply", centred, centred), axes=axes, keepdims=True)
    root = w.op("sqrt", w.op("add", variance, w.chooser.pick((1e-5, 1e-3))))
    size = int(x.tensor_type.shape[-1])  # pyright: ignore[reportArgumentType]
    y = w.op("multiply", w.op("divide", centred, root), w.vector(size, 1, 0))
    return w.op("add", y, w.vector(size, 1, 0)) if w.chooser.chance(70) else y


def _softmax(w: Writer, x: Var) -> Var:
    axes = (x.tensor_type.rank - 1,)
    powers = w.op("exp", w.op("subtract", x, w.op("max", x, axes=axes, keepdims=True)))
    return w.op("divide", powers, w.op("sum", powers, axes=axes, keepdims=True))


def _product_and_bias(w: Writer, x: Var) -> Var:
    """A product of batches that broadcast, transposed or not, and a bias of any shape that fits."""
    x = w.of_rank(x, w.chooser.between(2, 4))
    *batch, _, inner = (int(size) for size in x.tensor_type.shape)  # pyright: ignore[reportArgumentType]
    columns = w.chooser.pick((1, 4, 7, 16))
    others = [w.chooser.pick((size, size, 1)) for size in batch][w.chooser.below(len(batch) + 1) :]
    if w.chooser.chance(40):
        order = (*range(len(others)), len(others) + 1, len(others))
        weight: Expr = w.op("permute_dims", w.sketch.input(_array(w, *others, columns, inner)), axes=order)
    else:
        weight = w.weights(*others, inner, columns)
    y = w.op("matmul", x, weight)
    if w.chooser.chance(70):
        shape = y.tensor_type.shape[w.chooser.below(y.tensor_type.rank) :]
        bias = w.weights(*(int(size) if w.chooser.chance(80) else 1 for size in shape))  # pyright: ignore[reportArgumentType]
        y = w.op("add", y, bias)
    return w.op("nn.relu", y) if w.chooser.chance(40) else y


def _array(w: Writer, *shape: int) -> np.ndarray:
    return bins.array_in(w.chooser, shape, "float32", Interval(-1.0, 1.0))


IDIOMS: Mapping[str, Idiom] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "sigmoid": _sigmoid,
    "gated": _gated,
    "mish": _mish,
    "softsign": _softsign,
    "hard": _hard,
    "numbers": _numbers,
    "with_itself": _with_itself,
    "unary_twice": _unary_twice,
    "slices": _slices,
    "permutations": _permutations,
    "reshaped": _reshaped,
    "split": _split,
    "scaled_linear": _scaled_linear,
    "padded": _padded,
    "normalised": _normalised,
    "softmax": _softmax,
    "product_and_bias": _product_and_bias,
}


def idiom(chooser: Chooser, sketch: Sketch, x: Var) -> str:
    """Write an idiom of a value of floats; return its name, empty where it came to nothing."""
    name = chooser.pick(tuple(IDIOMS))
    if x.tensor_type.dtype != "float32" or not x.tensor_type.rank:
        return ""
    try:
        IDIOMS[name](Writer(chooser, sketch), x)
    except RefusedError:
        return ""
    return name
