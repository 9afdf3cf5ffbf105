"""Fourier transforms and the tensors that go with them."""

from __future__ import annotations

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter
from kernelyard_onnx.tensors import DTYPES


@converter("DFT", since=17)
def fourier_by_attribute(node: Node) -> Expr:
    return _fourier(node, node.attr("axis", 1))


@converter("DFT", since=20)
def fourier(node: Node) -> Expr:
    axis = node.optional(2)
    return _fourier(node, -2 if axis is None else int(node.scalar(axis, "axis")))


def _fourier(node: Node, axis: int) -> Expr:
    """Return one matrix product per part: the transform of fixed length is a matrix.

    X: (..., length, 1 or 2) real or complex numbers -> (..., bins, 2).
    """
    x, length = node.input(0), node.optional(1)
    last, at = node.rank(x) - 1, node.axis(axis, node.rank(x))
    size = node.require_fixed(node.shape(x)[at], "length of its signal")
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    gives_reals = inverse and onesided
    points = 2 * (size - 1) if gives_reals else size
    if length is not None:
        points = int(node.scalar(length, "dft_length"))
    used = min(size, points // 2 + 1 if gives_reals else points)
    if used < size:
        x = node.slice(x, at, 0, used)
    components = node.require_fixed(node.shape(x)[last], "number of its components")
    order = [a for a in range(last) if a != at] + [at]
    parts = [node.permute(node.select(x, last, index), order) for index in range(components)]
    if gives_reals:
        results = [_real_signal(node, parts, used, points)]
    else:
        bins = points // 2 + 1 if onesided else points
        results = _transform(node, parts, used, points, bins, 1 if inverse else -1)
    back = [order.index(a) for a in range(last)]
    return node.stack([node.permute(result, back) for result in results], last)


def _real_signal(node: Node, parts: list[Expr], used: int, points: int) -> Expr:
    """Return the inverse of a one-sided transform: the bins that are left out are the conjugates of those that are
    there.
    """
    node.affordable(used * points, "matrix")
    angle = 2 * np.pi * np.outer(np.arange(used), np.arange(points)) / points
    bins = np.arange(used)
    weight = np.where((bins == 0) | (2 * bins == points), 1, 2)[:, None] / points
    dtype = to_numpy(node.dtype(parts[0]))
    real = node.op("matmul", parts[0], (np.cos(angle) * weight).astype(dtype))
    if len(parts) == 1:
        return real
    return node.op("subtract", real, node.op("matmul", parts[1], (np.sin(angle) * weight).astype(dtype)))


def _transform(node: Node, parts: list[Expr], used: int, points: int, bins: int, sign: int) -> tuple[Expr, Expr]:
    node.affordable(used * bins, "matrix")
    angle = sign * 2 * np.pi * np.outer(np.arange(used), np.arange(bins)) / points
    scale = 1 / points if sign > 0 else 1
    dtype = to_numpy(node.dtype(parts[0]))
    cosine, sine = ((f(angle) * scale).astype(dtype) for f in (np.cos, np.sin))
    real, imaginary = node.op("matmul", parts[0], cosine), node.op("matmul", parts[0], sine)
    if len(parts) == 1:
        return real, imaginary
    real = node.op("subtract", real, node.op("matmul", parts[1], sine))
    return real, node.op("add", imaginary, node.op("matmul", parts[1], cosine))


@converter("STFT", since=17)
def short_time_fourier(node: Node) -> Expr:
    """Gather frames by index, weight them by the window, and multiply by the matrix of the transform."""
    signal, window, length = node.input(0), node.optional(2), node.optional(3)
    hop = int(node.scalar(node.input(1), "frame_step"))
    if length is None and window is None:
        node.reject("it has neither a window nor a frame_length")
    size = int(node.scalar(node.input(3), "frame_length")) if window is None else node.shape(window)[0]
    size = node.require_fixed(size, "length of its frames")
    if node.rank(signal) == 2:  # without the axis of components, as onnxruntime has it
        signal = node.reshape(signal, (*node.shape(signal), 1))
    frames = node.op("take", signal, _frame_indices(node, node.shape(signal)[1], size, hop), axis=1)
    components = node.require_fixed(node.shape(frames)[-1], "number of its components")
    parts = [node.select(frames, node.rank(frames) - 1, index) for index in range(components)]
    if window is not None:
        parts = [node.op("multiply", part, window) for part in parts]
    bins = size // 2 + 1 if node.attr("onesided", 1) else size
    return node.stack(_transform(node, parts, size, size, bins, -1), 3)


def _frame_indices(node: Node, length: Dim, size: int, hop: int) -> Expr:
    """Return the place in a signal of each number of each of its frames: int64 (frames, size)."""
    count = (length - size) // hop + 1
    if isinstance(count, int):
        return Constant(np.arange(count)[:, None] * hop + np.arange(size))
    starts = node.op("arange", start=0, step=hop, count=count, dtype="int64")
    return node.op("add", node.reshape(starts, (count, 1)), np.arange(size))


@converter("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node) -> Expr:
    """Compute triangles evenly spaced in mel; all inputs are constants, and so is the result."""
    bins, length, rate = (int(node.scalar(node.input(k), "input")) for k in range(3))
    lower, upper = (float(node.scalar(node.input(k), "input")) for k in (3, 4))
    spectrum = length // 2 + 1
    node.affordable(spectrum * bins, "result")
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (lower, upper))
    mels = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    points = np.floor((length + 1) * 700 * (10 ** (mels / 2595) - 1) / rate).astype(np.int64)
    matrix = np.zeros((spectrum, bins))
    for column in range(bins):
        first, centre, last = points[column : column + 3]
        if first == centre:
            matrix[centre, column] = 1
        for row in range(first, centre + 1):
            if first != centre:
                matrix[row, column] = (row - first) / (centre - first)
        for row in range(centre, last):
            if last != centre:
                matrix[row, column] = (last - row) / (last - centre)
    return Constant(matrix.astype(to_numpy(DTYPES.get(node.attr("output_datatype", 1), "float32"))))


@converter("HannWindow", "HammingWindow", "BlackmanWindow", since=17)
def window(node: Node) -> Expr:
    """Return a window of fixed length, in closed form."""
    size = int(node.scalar(node.input(0), "size"))
    node.affordable(size, "result")
    terms = {"HannWindow": (0.5, 0.5), "HammingWindow": (25 / 46, 21 / 46), "BlackmanWindow": (0.42, 0.5, 0.08)}
    period = size if node.attr("periodic", 1) else size - 1
    angle = 2 * np.pi * np.arange(size) / max(period, 1)
    values = sum(c * (-1) ** k * np.cos(k * angle) for k, c in enumerate(terms[node.proto.op_type]))
    return Constant(np.asarray(values).astype(to_numpy(DTYPES.get(node.attr("output_datatype", 1), "float32"))))
