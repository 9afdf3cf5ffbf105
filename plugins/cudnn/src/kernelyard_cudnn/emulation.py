"""Emulation of cuDNN: a graph computed with NumPy on the very dims and strides that it describes.

Sums are float32, as cuDNN's are; so is what lies between operations; float8 is cut to its range when it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import singledispatch

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from kernelyard import dtypes
from kernelyard.runtime.api import array_at
from kernelyard_cudnn.graph import (
    Attention,
    Convolution,
    ConvolutionTranspose,
    Graph,
    Node,
    Norm,
    Pointwise,
    Tensor,
)

Array = np.ndarray
Values = dict[int, Array]
FLOAT8 = "float8"
TF32_DROPPED_BITS = 13


class EmulatedPlan:
    """A graph over fixed memory of the host. addresses: of each tensor's first element, by uid."""

    def __init__(self, graph: Graph, addresses: Mapping[int, int]) -> None:
        self._graph = graph
        self._views = {t.uid: view(t, addresses[t.uid]) for t in graph.tensors if not t.is_virtual}

    def __call__(self) -> None:
        """Compute the graph."""
        values: Values = {
            uid: np.array(array, np.float32) for uid, array in self._views.items() if array.dtype != np.int32
        }
        values |= {uid: array.copy() for uid, array in self._views.items() if array.dtype == np.int32}
        with np.errstate(all="ignore"):
            for node in self._graph.nodes:
                values[node.y.uid] = compute(node, values, self._graph)
            result = self._graph.result
            self._views[result.uid][...] = convert(values[result.uid], result.dtype)

    def move(self, uid: int, address: int) -> None:
        """Give a tensor another address, for the next calls."""
        (tensor,) = (each for each in self._graph.tensors if each.uid == uid)
        self._views[uid] = view(tensor, address)


def view(tensor: Tensor, address: int) -> Array:
    """Return the memory of a tensor, as its strides have it."""
    flat = array_at(address, (tensor.extent,), tensor.dtype)
    return as_strided(flat, tensor.dims, [stride * flat.itemsize for stride in tensor.strides])


def convert(array: Array, dtype: str) -> Array:
    """Convert numbers to the dtype of a result; float8 saturates."""
    wanted = dtypes.to_numpy(dtype)
    if dtype.startswith(FLOAT8):
        import ml_dtypes

        most = float(ml_dtypes.finfo(wanted).max)
        array = np.clip(array, -most, most)  # NaN stays
    return array.astype(wanted)


def tf32(array: Array) -> Array:
    """Round to 10 bits of mantissa, halves away from zero."""
    bits = array.astype(np.float32).view(np.uint32)
    half, mask = np.uint32(1 << (TF32_DROPPED_BITS - 1)), np.uint32(0xFFFFFFFF ^ ((1 << TF32_DROPPED_BITS) - 1))
    return np.where(np.isfinite(array), ((bits + half) & mask).view(np.float32), array)


def _round_factor(tensor: Tensor, values: Values, graph: Graph) -> Array:
    """Return an operand of a product."""
    return tf32(values[tensor.uid]) if graph.tf32 and tensor.dtype == "float32" else values[tensor.uid]


@singledispatch
def compute(node: Node, values: Values, graph: Graph) -> Array:
    """Compute an operation from the values so far."""
    raise TypeError(f"no cuDNN operation for {node!r}")


# --- convolutions -----------------------------------------------------------------------------------------------------
@compute.register
def _(node: Convolution, values: Values, graph: Graph) -> Array:
    x, w = (_round_factor(tensor, values, graph) for tensor in (node.x, node.w))
    window, kernel = node.window, w.shape[2:]
    x = np.pad(x, [(0, 0), (0, 0), *((pad, pad) for pad in window.padding)])
    reach = [d * (k - 1) + 1 for d, k in zip(window.dilation, kernel, strict=True)]
    spatial = tuple(range(2, x.ndim))
    steps = [slice(None, None, step) for step in (*window.strides, *window.dilation)]
    taps = sliding_window_view(x, reach, axis=spatial)[(slice(None), slice(None), *steps)]
    groups, per_group = x.shape[1] // w.shape[1], w.shape[1]
    made: list[Array] = []
    for group, weights in enumerate(np.split(w, groups)):
        part = taps[:, group * per_group : (group + 1) * per_group]
        summed = (1, *range(part.ndim - len(kernel), part.ndim)), tuple(range(1, weights.ndim))
        made.append(np.moveaxis(np.tensordot(part, weights, summed), -1, 1))
    return np.concatenate(made, 1)


@compute.register
def _(node: ConvolutionTranspose, values: Values, graph: Graph) -> Array:
    x, w = (_round_factor(tensor, values, graph) for tensor in (node.x, node.w))
    window, kernel, space = node.window, w.shape[2:], x.shape[2:]
    per_group = w.shape[1]
    groups = node.y.dims[1] // per_group
    reach = [
        (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(space, window.strides, window.dilation, kernel, strict=True)
    ]
    wanted = [size + 2 * pad for size, pad in zip(node.y.dims[2:], window.padding, strict=True)]
    whole = np.zeros((x.shape[0], node.y.dims[1], *map(max, reach, wanted)), np.float32)
    by_group = zip(np.split(x, groups, 1), np.split(w, groups), strict=True)
    for group, (part, weights) in enumerate(by_group):
        spread = np.tensordot(part, weights, (1, 0))  # (N, space..., channels of the result, kernel...)
        channels = slice(group * per_group, (group + 1) * per_group)
        for tap in np.ndindex(*kernel):
            starts = [t * d for t, d in zip(tap, window.dilation, strict=True)]
            at = [slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, space, window.strides, strict=True)]
            whole[(slice(None), channels, *at)] += np.moveaxis(spread[(..., *tap)], -1, 1)
    crop = [slice(pad, pad + size) for pad, size in zip(window.padding, node.y.dims[2:], strict=True)]
    return whole[(slice(None), slice(None), *crop)]


# --- one element at a time --------------------------------------------------------------------------------------------
def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float32)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


UNARY: Mapping[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x * (1 + _erf(x * np.float32(math.sqrt(0.5)))) / 2,
    "gelu_approx_tanh": lambda x: x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + 0.044715 * x**3))) / 2,
    "swish": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
}
BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "sub": np.subtract,
    "max": np.maximum,
    "min": np.minimum,
}


@compute.register
def _(node: Pointwise, values: Values, graph: Graph) -> Array:
    x = values[node.x.uid]
    if node.operand is not None:
        return BINARY[node.mode](x, values[node.operand.uid])
    parameters = dict(node.parameters)
    if node.mode == "relu":
        return np.clip(x, parameters.get("lower_clip", 0.0), parameters.get("upper_clip", math.inf), dtype=np.float32)
    if node.mode == "leaky_relu":
        return np.where(x > 0, x, np.float32(parameters["negative_slope"]) * x)
    return UNARY[node.mode](x)


# --- norms and attention ----------------------------------------------------------------------------------------------
@compute.register
def _(node: Norm, values: Values, graph: Graph) -> Array:
    x, axes = values[node.x.uid], tuple(range(1, len(node.x.dims)))
    shift: Array | float = 0.0
    if node.bias is not None:
        x, shift = x - x.mean(axes, keepdims=True), values[node.bias.uid]
    scale = 1 / np.sqrt((x * x).mean(axes, keepdims=True) + np.float32(node.epsilon))
    return x * scale * values[node.scale.uid] + shift


@compute.register
def _(node: Attention, values: Values, graph: Graph) -> Array:
    q, k, v = (values[tensor.uid] for tensor in (node.q, node.k, node.v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    scores = q @ np.swapaxes(k, 2, 3) * np.float32(node.scale)
    if node.bias is not None:
        scores = scores + values[node.bias.uid]
    scores = np.where(_visible(node, values), scores, np.float32(-np.inf))
    most = scores.max(3, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isfinite(most), most, 0))
    total = powers.sum(3, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ v  # a row that sees nothing is zeros


def _visible(node: Attention, values: Values) -> Array:
    """Return the attention mask, the keys visible to each query: (B, 1, S, T)."""
    batch, rows, columns = node.q.dims[0], node.q.dims[2], node.k.dims[2]
    of_q, of_k = (
        _count(tensor, size, batch, values) for tensor, size in ((node.lengths_q, rows), (node.lengths_kv, columns))
    )
    row, column = np.arange(rows)[:, None], np.arange(columns)
    visible = (row < of_q) & (column < of_k)
    if node.causal == "top_left":
        visible &= column <= row
    if node.causal == "bottom_right":
        visible &= column - of_k <= row - of_q
    return visible


def _count(lengths: Tensor | None, size: int, batch: int, values: Values) -> Array:
    return np.full((batch, 1, 1, 1), size) if lengths is None else values[lengths.uid]
