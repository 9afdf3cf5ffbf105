"""Fourier transforms, as products with matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Constant, Expr
from kernelyard_torch.complex_numbers import Complex
from kernelyard_torch.converters.complex import product
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

Matrix: TypeAlias = "tuple[Expr, Expr]"
LARGEST_MATRIX = 512  # longer axes are split in two, where their size has factors


@converter("aten._fft_r2c.default", complex_numbers=True)
def fft_of_real(node: Node, x: Expr, axes: Sequence[int], normalization: int, onesided: bool) -> Complex:
    *rest, last = (node.axis(axis, node.rank(x)) for axis in axes)
    size = node.shape(x)[last]
    kept = dims.floordiv(size, 2) + 1 if onesided else size
    if _factor(size) > 1:
        whole = _transform(node, Complex(x, node.full(0, node.shape(x), node.dtype(x))), last, -1)
        result = whole.map(lambda part: node.slice(part, last, 0, kept))
    else:
        result = Complex(*(node.times(x, last, part) for part in _matrix(node, size, kept, -1, node.dtype(x))))
    for axis in rest:
        result = _transform(node, result, axis, -1)
    return _scale(node, result, _count(node, x, axes), normalization)


@converter("aten._fft_c2c.default", complex_numbers=True)
def fft(node: Node, x: Complex, axes: Sequence[int], normalization: int, forward: bool) -> Complex:
    result = x
    for axis in axes:
        result = _transform(node, result, node.axis(axis, node.rank(x.real)), -1 if forward else 1)
    return _scale(node, result, _count(node, x.real, axes), normalization)


@converter("aten._fft_c2r.default", complex_numbers=True)
def fft_to_real(node: Node, x: Complex, axes: Sequence[int], normalization: int, size: Dim) -> Expr:
    """Weigh the last axis, which has half of the frequencies: those that are in both halves count twice."""
    *rest, last = (node.axis(axis, node.rank(x.real)) for axis in axes)
    count, dtype = dims.floordiv(size, 2) + 1, node.dtype(x.real)
    for axis in rest:
        x = _transform(node, x, axis, 1)
    x = x.map(lambda part: node.slice(part, last, 0, count))
    steps = _steps(node, count)
    alone = node.op("logical_or", node.op("equal", steps, 0), node.op("equal", node.op("multiply", steps, 2), size))
    counts = node.cast(node.op("where", alone, node.expr(1, "int64"), node.expr(2, "int64")), dtype)
    weights = node.along(counts, last, node.rank(x.real))
    x = x.map(lambda part: node.op("multiply", part, weights))
    if _factor(size) > 1:
        padded = x.map(lambda part: _pad(node, part, last, size))
        result = _transform(node, padded, last, 1).real
    else:
        cosines, sines = (node.permute(part, (1, 0)) for part in _matrix(node, size, count, 1, dtype))
        result = node.op("subtract", node.times(x.real, last, cosines), node.times(x.imag, last, sines))
    return _scale(node, Complex(result, result), _count(node, result, axes), normalization).real


def _pad(node: Node, x: Expr, axis: int, size: Dim) -> Expr:
    """Append zeros along an axis, up to a size."""
    shape = list(node.shape(x))
    shape[axis] = size - shape[axis]
    return x if shape[axis] == 0 else node.concat([x, node.full(0, shape, node.dtype(x))], axis)


def _transform(node: Node, x: Complex, axis: int, sign: int) -> Complex:
    """Transform one axis without scaling, a size with factors in two steps (Cooley and Tukey 1965)."""
    size, dtype = node.shape(x.real)[axis], node.dtype(x.real)
    rows = _factor(size)
    if rows == 1:
        return _product(node, x, axis, _matrix(node, size, size, sign, dtype))
    assert isinstance(size, int)
    before, after = node.shape(x.real)[:axis], node.shape(x.real)[axis + 1 :]
    columns = size // rows
    split = x.map(lambda part: node.reshape(part, (*before, rows, columns, *after)))
    first = _transform(node, split, axis, sign)
    angles = sign * 2 * np.pi / size * np.outer(np.arange(rows), np.arange(columns))
    shape = (rows, columns, *(1,) * len(after))
    turns = Complex(*(_constant(f(angles).reshape(shape), dtype) for f in (np.cos, np.sin)))
    second = _transform(node, product(node, "multiply", first, turns), axis + 1, sign)
    order = list(range(node.rank(second.real)))
    order[axis], order[axis + 1] = axis + 1, axis
    return second.map(lambda part: node.reshape(node.permute(part, order), (*before, size, *after)))


def _factor(size: Dim) -> int:
    """Return the largest factor of a long axis that is at most its root; 1 for short ones, primes and open sizes."""
    if not isinstance(size, int) or size <= LARGEST_MATRIX:
        return 1
    return next(factor for factor in range(math.isqrt(size), 0, -1) if size % factor == 0)


def _product(node: Node, x: Complex, axis: int, matrix: Matrix) -> Complex:
    cosines, sines = matrix
    return Complex(
        node.op("subtract", node.times(x.real, axis, cosines), node.times(x.imag, axis, sines)),
        node.op("add", node.times(x.real, axis, sines), node.times(x.imag, axis, cosines)),
    )


def _matrix(node: Node, size: Dim, kept: Dim, sign: int, dtype: str) -> Matrix:
    """(size, kept): cosines and sines of a Fourier transform, of whole steps below `size`, which are exact."""
    if isinstance(size, int) and isinstance(kept, int):
        steps = np.arange(size)[:, None] * np.arange(kept) % size
        angles = 2 * np.pi / size * steps
        # Whole halves of a turn have no sine: an angle of what is real must not depend on how pi is rounded.
        sines = np.where(2 * steps % size == 0, 0.0, sign * np.sin(angles))
        return _constant(np.cos(angles), dtype), _constant(sines, dtype)
    angles = node.op("multiply", node.cast(_steps(node, size), "float64"), 2 * np.pi)
    angles = node.op("divide", angles, node.cast(node.expr(size, "int64"), "float64"))
    products = node.op("multiply", node.reshape(_steps(node, size), (size, 1)), _steps(node, kept))
    places = node.op("mod", products, node.expr(size, "int64"))
    cosines, sines = (node.op("take", node.cast(node.op(f, angles), dtype), places, axis=0) for f in ("cos", "sin"))
    return cosines, sines if sign > 0 else node.op("negative", sines)


def _constant(numbers: np.ndarray, dtype: str) -> Expr:
    return Constant(np.ascontiguousarray(numbers.astype(to_numpy(dtype))))


def _steps(node: Node, count: Dim) -> Expr:
    """Return the integers below a count: int64 (count,)."""
    if isinstance(count, int):
        return node.expr(np.arange(count), "int64")
    return node.op("arange", start=0, step=1, count=count, dtype="int64")


def _count(node: Node, x: Expr, axes: Sequence[int]) -> Dim:
    return dims.product([node.shape(x)[node.axis(axis, node.rank(x))] for axis in axes])


def _scale(node: Node, x: Complex, count: Dim, normalization: int) -> Complex:
    """PyTorch's codes: 0 does not scale, 1 divides by the root of the count, 2 by the count."""
    if normalization == 0:
        return x
    if isinstance(count, int):
        factor = 1 / math.sqrt(count) if normalization == 1 else 1 / count
        return x.map(lambda part: node.op("multiply", part, factor))
    divisor = node.cast(node.expr(count, "int64"), node.dtype(x.real))
    divisor = node.op("sqrt", divisor) if normalization == 1 else divisor
    return x.map(lambda part: node.op("divide", part, divisor))
