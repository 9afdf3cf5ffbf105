"""Weights that are too large for sums in 16 bits, apart from the others: few products, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelyard.dims import Shape
from kernelyard.ir import Constant, TensorType
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.byte_products import to_unsigned_byte
from kernelyard.tir.expr import Axis, const
from kernelyard.tir.expr import Expr as ScalarExpr
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.simplify import simplify
from kernelyard.tir.verify import verify

# So many of all pairs of weights: with twice as many they take as long as sums in 16 bits save (1.5 ns for each, on one
# core with AVX2).
MOST_OUTLIERS = 1 / 400
# Counts are rounded up to multiples of this part of a power of two, so that layers share kernels.
_PARTS = 4


class Outliers(NamedTuple):
    """What is left of weights (K, N) that were cut, in any order: their places, and numbers from -128 to 127."""

    rows: Constant
    columns: Constant
    numbers: Constant


def split_outliers(codes: np.ndarray, most: int) -> tuple[np.ndarray, Outliers] | None:
    """Return int8 weights (K, N) such that two neighbours of one sign are worth no more than `most`, and what was cut
    off; None where that is nothing, or too many.

    Example:
        >>> cut, left = split_outliers(np.pad(np.array([[100, -128], [50, 5]], np.int8), ((0, 0), (0, 400))), 128)
        >>> cut[:, :2].tolist(), left.numbers.data[:1].tolist()
        ([[78, -128], [50, 5]], [22])
    """
    pairs = codes.astype(np.int16).reshape(-1, 2, codes.shape[1])
    above, below = (np.maximum(np.maximum(sign * pairs, 0).sum(1) - most, 0) for sign in (1, -1))
    excess = above - below
    places, columns = np.nonzero(excess)
    if not 0 < len(places) <= MOST_OUTLIERS * len(pairs) * codes.shape[1]:
        return None
    numbers = excess[places, columns]
    of_pair = pairs[places, :, columns] * np.sign(numbers)[:, None]
    rows = 2 * places + of_pair.argmax(1)
    cut = codes.astype(np.int16)
    cut[rows, columns] -= numbers
    padding = (0, _round_up(len(rows)) - len(rows))
    arrays = (rows.astype(np.int64), columns.astype(np.int64), numbers.astype(np.int32))
    return cut.astype(np.int8), Outliers(*(Constant(np.pad(array, padding)) for array in arrays))


def _round_up(count: int) -> int:
    step = max(1, (1 << (count - 1).bit_length()) // (2 * _PARTS))
    return -(-count // step) * step


def outlier_products(data: TensorType, outliers: Outliers, result: Shape) -> PrimFunc:
    """Return the function that multiplies bytes (..., K) by outliers, and sums up what is of one column."""
    b = PrimFuncBuilder()
    x = b.input("x", data)
    rows, columns, numbers = (b.input(name, each.tensor_type) for name, each in outliers._asdict().items())
    total = b.compute(result, lambda *_: const(0, "int32"), name="outliers")

    def place(*point: Axis) -> Sequence[ScalarExpr]:
        return (*point[:-1], columns[point[-1]])

    def add(*point: Axis) -> ScalarExpr:
        byte = to_unsigned_byte(x[(*point[:-1], rows[point[-1]])])
        return total[tuple(place(*point))] + byte * numbers[point[-1]]

    extents = (*result[:-1], outliers.rows.tensor_type.shape[0])
    b.store(total, extents, place, add, ordered=(len(extents) - 1,))
    function = simplify(b.finish((total,), {"ops": ("dequantize", "matmul")}))
    verify(function, "matmul")
    return function
