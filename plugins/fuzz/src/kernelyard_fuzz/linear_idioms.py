"""Idioms of linear operators: products, convolutions and pools, and what stands around them in networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernelyard.ir import Constant, Expr, Var
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval
from kernelyard_fuzz.window_idioms import window
from kernelyard_fuzz.writer import RefusedError, Writer

MOST_STEPS = 5  # after a linear operator


# --- linear operators and what is around them -------------------------------------------------------------------------
def _write_scaled_linear(w: Writer, x: Var) -> Var:
    """Write scales and shifts of channels before and after products and convolutions, which constants take up."""
    is_image = w.chooser.chance(50)
    x = w.of_rank(x, 4 if is_image else w.chooser.between(2, 3))
    axis = 1 if is_image else -1
    for _ in range(w.chooser.between(1, 2)):
        channels = int(x.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
        x = _affine(w, x, channels, axis)
        count = w.chooser.pick((1, 3, 4, 8))
        x = _convolution(w, x) if is_image else w.op("matmul", x, w.weights(channels, count))
        count = int(x.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
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


def _product_and_bias(w: Writer, x: Var) -> Var:
    """A product of batches that broadcast, transposed or not, and a bias of any shape that fits."""
    x = w.of_rank(x, w.chooser.between(2, 4))
    *batch, _, inner = (int(size) for size in x.tensor_type.shape)  # pyright: ignore[reportArgumentType]
    columns = w.chooser.pick((1, 4, 7, 16))
    others = [w.chooser.pick((size, size, 1)) for size in batch][w.chooser.below(len(batch) + 1) :]
    if w.chooser.chance(40):
        order = (*range(len(others)), len(others) + 1, len(others))
        weight: Expr = w.op("permute_dims", w.sketch.input(w.array(*others, columns, inner)), axes=order)
    else:
        weight = w.weights(*others, inner, columns)
    y = w.op("matmul", x, weight)
    if w.chooser.chance(70):
        shape = y.tensor_type.shape[w.chooser.below(y.tensor_type.rank) :]
        bias = w.weights(*(int(size) if w.chooser.chance(80) else 1 for size in shape))  # pyright: ignore[reportArgumentType]
        y = w.op("add", y, bias)
    return w.op("nn.relu", y) if w.chooser.chance(40) else y


# --- any linear operator, and what follows it -------------------------------------------------------------------------
def _linear(w: Writer, x: Var) -> Var:
    """A product, or a convolution of any window, transposed or not."""
    rank = w.chooser.pick((2, 3, 4, 4, 4, 5))
    if rank == 2:
        x = w.of_rank(x, w.chooser.between(2, 3))
        return w.op("matmul", x, w.weights(int(x.tensor_type.shape[-1]), w.chooser.pick((1, 4, 8, 17))))  # pyright: ignore[reportArgumentType]
    return _convolution(w, w.of_rank(x, rank))


def _convolution(w: Writer, x: Var) -> Var:
    """A convolution of any window, stride and number of groups, transposed or not."""
    axes = x.tensor_type.rank - 2
    channels = int(x.tensor_type.shape[1])  # pyright: ignore[reportArgumentType]
    if not channels:
        raise RefusedError("nn.conv2d")
    groups = w.chooser.pick([count for count in (1, 1, 2, 2, 3, channels) if channels % count == 0])
    filters, kernel = groups * w.chooser.pick((1, 2, 4)), tuple(w.chooser.pick((1, 2, 3)) for _ in range(axes))
    window: dict[str, Any] = {
        "strides": tuple(w.chooser.pick((1, 1, 2, 3)) for _ in kernel),
        "padding": tuple(w.chooser.below(3) for _ in kernel * 2),
        "dilation": tuple(w.chooser.pick((1, 1, 2)) for _ in kernel),
        "groups": groups,
    }
    if w.chooser.chance(70):
        return w.op(f"nn.conv{axes}d", x, w.weights(filters, channels // groups, *kernel), **window)
    extra = tuple(w.chooser.below(stride) for stride in window["strides"])
    weights = w.weights(channels, filters // groups, *kernel)
    return w.op(f"nn.conv{axes}d_transpose", x, weights, output_padding=extra, **window)


def _write_steps(w: Writer, x: Var) -> Var:
    """Write a linear operator, a pool or a reduction, and one step after the other on it, as backends fuse them."""
    kind = w.chooser.below(10)
    if kind == 8:
        x = w.of_rank(x, 4)
        x = window(w, x, int(x.tensor_type.shape[1]))  # pyright: ignore[reportArgumentType]
    elif kind == 9:
        axes = (w.chooser.below(x.tensor_type.rank),)
        x = w.op(w.chooser.pick(("sum", "mean", "max", "prod")), x, axes=axes, keepdims=w.chooser.chance(60))
    else:
        x = _linear(w, x)
    for _ in range(w.chooser.between(1, MOST_STEPS)):
        x = w.chooser.pick(STEPS)(w, x)
    return x


def _with_other(w: Writer, x: Var) -> Var:
    """An operator with a number, one for each element of an axis, or a whole tensor; in any order."""
    shape = tuple(int(size) for size in x.tensor_type.shape)  # pyright: ignore[reportArgumentType]
    kind, other = w.chooser.below(3), w.number(w.chooser.pick((0.5, 2.0, -1.0, 3.0)))
    if kind == 1 and shape:
        axis = w.chooser.below(len(shape))
        other = w.vector(shape[axis], len(shape), axis)
    elif kind == 2:
        other = w.weights(*(size if w.chooser.chance(85) else 1 for size in shape))
    name = w.chooser.pick(("add", "subtract", "multiply", "divide", "maximum", "minimum"))
    is_reversed = w.chooser.chance(40) and (name != "divide" or kind < 2)
    return w.op(name, other, x) if is_reversed else w.op(name, x, other)


def _activate(w: Writer, x: Var) -> Var:
    names = ("nn.relu", "sigmoid", "tanh", "nn.gelu", "nn.hard_swish", "abs", "negative", "square", "nn.leaky_relu")
    return w.op(w.chooser.pick(names), x)


def _clip(w: Writer, x: Var) -> Var:
    low, high = w.chooser.pick(((0.0, 6.0), (-1.0, 1.0), (0.0, None), (None, 0.5), (0.5, 0.25)))
    return w.op("clip", x, min=low, max=high)


def _raise_to_power(w: Writer, x: Var) -> Var:
    return w.op("power", w.op("abs", x), w.chooser.pick((0.5, 1.0, 2.0, 3.0)))


def _with_itself(w: Writer, x: Var) -> Var:
    return w.op(w.chooser.pick(("add", "multiply", "maximum")), x, _activate(w, x))


STEPS: tuple[Callable[[Writer, Var], Var], ...] = (
    *(_with_other, _with_other, _with_other, _activate, _activate, _clip, _raise_to_power, _with_itself),
)


def _write_linear_with_norm(w: Writer, x: Var) -> Var:
    """Write a linear operator with a bias, a batch norm and an activation, of which any may not be there."""
    y = _linear(w, x)
    axis = 1 if y.tensor_type.rank > 3 else y.tensor_type.rank - 1
    channels = int(y.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
    if w.chooser.chance(50):
        y = w.op("add", y, w.vector(channels, y.tensor_type.rank, axis))
    if w.chooser.chance(80):
        y = _batch_norm(w, y, axis if w.chooser.chance(85) else w.chooser.below(y.tensor_type.rank))
    return _activate(w, y) if w.chooser.chance(60) else y


def _batch_norm(w: Writer, x: Var, axis: int) -> Var:
    size = int(x.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
    gamma, beta, mean = (w.weights(size) for _ in range(3))
    variance = Constant(np.abs(w.array(size)) + np.float32(0.1))
    return w.op("nn.batch_norm", x, gamma, beta, mean, variance, axis=axis, epsilon=w.chooser.pick((1e-5, 1e-3)))


def _branches(w: Writer, x: Var) -> Var:
    """Several linear operators of one value, added or concatenated, and scales, shifts and activations behind them."""
    is_image, count = w.chooser.chance(70), w.chooser.between(2, 3)
    x = w.of_rank(x, w.chooser.pick((3, 4)) if is_image else 2)
    axis = 1 if is_image else x.tensor_type.rank - 1
    channels, filters = int(x.tensor_type.shape[axis]), w.chooser.pick((1, 4, 8))  # pyright: ignore[reportArgumentType]
    branches = [_branch(w, x, is_image, channels, filters if w.chooser.chance(80) else 3) for _ in range(count)]
    if w.chooser.chance(20):
        branches.append(x)
    if w.chooser.chance(50):
        y = branches[0]
        for other in branches[1:]:
            y = w.op("add", y, other)
        return y
    y = w.op("concat", *branches, axis=axis)
    for _ in range(w.chooser.between(1, 3)):
        total = int(y.tensor_type.shape[axis])  # pyright: ignore[reportArgumentType]
        kind = w.chooser.below(3)
        y = _batch_norm(w, y, axis) if kind == 0 else _affine(w, y, total, axis) if kind == 1 else _activate(w, y)
    return y


def _branch(w: Writer, x: Var, is_image: bool, channels: int, filters: int) -> Var:
    if not is_image:
        y = w.op("matmul", x, w.weights(channels, filters))
    else:
        axes = x.tensor_type.rank - 2
        kernel = tuple(w.chooser.pick((1, 2, 3, 3)) for _ in range(axes))
        before = tuple(w.chooser.below(size) for size in kernel)
        padding = (*before, *(size - 1 - first for size, first in zip(kernel, before, strict=True)))
        y = w.op(f"nn.conv{axes}d", x, w.weights(filters, channels, *kernel), padding=padding)
    return w.op("add", y, w.vector(filters, y.tensor_type.rank, 1 if is_image else -1)) if w.chooser.chance(40) else y


def _weights_in_blocks(w: Writer, x: Var) -> Var:
    """A product with codes of weights that share scales, and zero points or minima, in blocks of rows.

    Small ones are folded, large ones are dequantized as they are multiplied.
    """
    rows, low = w.chooser.pick((1, 2, 3, 5)), w.chooser.pick((0, -8))
    block, blocks, columns = w.chooser.pick(((4, 3, 7), (16, 2, 16), (32, 16, 70), (16, 40, 64)))
    codes = bins.array_in(w.chooser, (blocks, block, columns), "int8", Interval(low, low + 15))
    real = w.op("astype", Constant(codes), dtype="float32")
    if w.chooser.chance(50):
        zeros = bins.array_in(w.chooser, (blocks, 1, columns), "int8", Interval(low, low + 15))
        real = w.op("subtract", real, Constant(zeros.astype(np.float32)))
    scales = bins.array_in(w.chooser, (blocks, 1, columns), "float32", Interval(0.01, 0.1))
    real = w.op("multiply", real, Constant(scales))
    if w.chooser.chance(25):
        real = w.op("add", real, Constant(w.array(blocks, 1, columns)))
    matrix = w.op("reshape", real, shape=(blocks * block, columns))
    return w.op("matmul", w.sketch.input(w.array(rows, blocks * block)), matrix)


LINEAR_IDIOMS: Mapping[str, Callable[[Writer, Var], object]] = {
    "scaled_linear": _write_scaled_linear,
    "product_and_bias": _product_and_bias,
    "followed": _write_steps,
    "normed": _write_linear_with_norm,
    "branches": _branches,
    "weights_in_blocks": _weights_in_blocks,
}
