"""Idioms of transformers and of networks with strides: queries, keys and values of one product, attention from its
parts, products of integers that are scaled afterwards, and convolutions whose readers all skip pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from kernelyard.ir import Constant, Expr, Var, get_op
from kernelyard_fuzz.writer import RefusedError, Writer

LARGEST_SUM = 1e7  # of products of bytes, before it is scaled


def _size(w: Writer, x: Var, axis: int) -> int:
    return w.sketch.arrays[x].shape[axis]


def _integers(values: int | np.ndarray, dtype: str) -> Constant:
    return Constant(np.asarray(values, dtype))


# --- attention --------------------------------------------------------------------------------------------------------
def _write_projected_attention(w: Writer, x: Var) -> Var:
    """Write attention whose queries, keys and values come from one product, taken apart as exporters do."""
    x = w.of_rank(x, 3)
    batch, tokens, depth = w.sketch.arrays[x].shape
    heads, width = w.chooser.pick((1, 2, 3)), w.chooser.pick((1, 4, 8))
    y = w.op("matmul", x, w.weights(depth, 3 * heads * width))
    if w.chooser.chance(60):
        y = w.op("add", y, w.weights(3 * heads * width))
    if w.chooser.chance(50):
        y = w.op("reshape", y, shape=(batch, tokens, 3, heads, width))
        y = w.op("permute_dims", y, axes=(2, 0, 3, 1, 4))
        parts = [_part(w, y, number) for number in range(3)]
    else:
        pieces = [
            w.op("strided_slice", y, axes=(2,), begin=(at,), end=(at + heads * width,), strides=(1,))
            for at in range(0, 3 * heads * width, heads * width)
        ]
        parts = [_in_heads(w, each, heads, width) for each in pieces]
    return _attention(w, *parts)


def _part(w: Writer, y: Var, number: int) -> Var:
    """Return one of the three parts of a packed product, by an index or a slice."""
    if w.chooser.chance(50):
        return w.op("take", y, _integers(number, "int64"), axis=0)
    part = w.op("strided_slice", y, axes=(0,), begin=(number,), end=(number + 1,), strides=(1,))
    return w.op("reshape", part, shape=w.sketch.arrays[part].shape[1:])


def _in_heads(w: Writer, x: Var, heads: int, width: int) -> Var:
    batch, tokens, _ = w.sketch.arrays[x].shape
    return w.op("permute_dims", w.op("reshape", x, shape=(batch, tokens, heads, width)), axes=(0, 2, 1, 3))


def _attention(w: Writer, q: Var, k: Var, v: Var) -> Var:
    """Attention from its parts: scales on either side, a mask that is added or chooses, the weights read once more."""
    tokens, width = _size(w, k, 2), _size(w, q, 3)
    scale = 1 / math.sqrt(width)
    if w.chooser.chance(40):
        q = w.op("multiply", q, scale)
    scores = w.op("matmul", q, w.op("permute_dims", k, axes=(0, 1, 3, 2)))
    if w.chooser.chance(40):
        scores = w.op(w.chooser.pick(("multiply", "divide")), scores, scale)
    kind = w.chooser.below(4)
    if kind == 0:
        scores = w.op("add", scores, w.weights(w.chooser.pick((1, tokens)), tokens))
    elif kind == 1:
        seen = Constant(np.tril(np.ones((tokens, tokens), bool)))
        scores = w.op("where", seen, scores, w.chooser.pick((-1e4, -100.0)))
    weights = w.op("nn.softmax", scores, axis=3)
    if w.chooser.chance(15):
        w.sketch.outputs.append(weights)
    mixed = w.op("permute_dims", w.op("matmul", weights, v), axes=(0, 2, 1, 3))
    batch, tokens, heads, width = w.sketch.arrays[mixed].shape
    return w.op("reshape", mixed, shape=(batch, tokens, heads * width))


# --- integers ---------------------------------------------------------------------------------------------------------
def _integer_product(w: Writer, x: Var) -> Var:
    """A product of integers that is scaled afterwards (MatMulInteger), with zero points and scales of any shape."""
    x = w.of_rank(x, w.chooser.between(2, 3))
    inner, columns = _size(w, x, -1), w.chooser.pick((1, 4, 7, 16))
    scale, zero = w.number(0.03125), w.chooser.pick((0, 3, 128, 255))
    stored = w.op("quantize", x, scale, _integers(zero, "uint8"), dtype="uint8")
    weight = _integers(np.rint(w.array(inner, columns) * 127), "int8")
    left = w.op("astype", stored, dtype="int32")
    right: Expr = w.op("astype", weight, dtype="int32")
    if zero or w.chooser.chance(50):
        left = w.op("subtract", left, _integers(zero, "int32"))
    if w.chooser.chance(50):
        zeros = w.chooser.pick((np.array(2), np.arange(columns) % 3))
        right = w.op("subtract", right, _integers(zeros, "int32"))
    product = w.op("matmul", left, right)
    if w.chooser.chance(30):
        product = w.op("add", product, _integers(np.arange(columns), "int32"))
    made = w.sketch.apply(get_op("astype"), [product], {"dtype": "float32"}, largest=LARGEST_SUM)
    if not made:
        raise RefusedError("astype")
    y = w.op("multiply", made[0], scale)
    y = w.op("multiply", y, w.vector(columns, 1, 0) if w.chooser.chance(50) else 0.0078125)
    return w.op("add", y, w.vector(columns, 1, 0)) if w.chooser.chance(40) else y


# --- strides ----------------------------------------------------------------------------------------------------------
def _skip_pixels(w: Writer, x: Var) -> Var:
    """Write a convolution and a sum whose readers are pointwise and skip pixels; now and then one skips others."""
    x = w.of_rank(x, 4)
    channels, stride = _size(w, x, 1), w.chooser.pick((2, 2, 3))
    k = w.chooser.pick((1, 3))
    y = w.op("nn.conv2d", x, w.weights(channels, channels, k, k), padding=(k // 2,) * 4, strides=(1, 1))
    if w.chooser.chance(60):
        y = w.op("add", y, x)
    y = w.op("nn.relu", y) if w.chooser.chance(70) else y
    results: list[Var] = []
    for _ in range(w.chooser.between(1, 2)):
        usual = {"strides": (stride, stride), "padding": (0, 0, 0, 0)}
        others = {"strides": ((stride, 1), (1, 1)), "padding": ((1, 1, 1, 1), (0, 0, 1, 1))}
        attrs = w.nearly(usual, others) if w.chooser.chance(30) else usual
        results.append(w.op("nn.conv2d", y, w.weights(w.chooser.pick((1, 4)), channels, 1, 1), **attrs))
    return results[-1]


TRANSFORMER_IDIOMS: Mapping[str, Callable[[Writer, Var], Var]] = {
    "projected": _write_projected_attention,
    "integer_product": _integer_product,
    "skipped_pixels": _skip_pixels,
}
