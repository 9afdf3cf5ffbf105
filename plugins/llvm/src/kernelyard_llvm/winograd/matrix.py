"""Vectors multiplied by the small constant matrices of Winograd's transforms, with the sums of pairs shared.

A pair of points, p and -p, makes two rows (or, in the transform of results, two columns) that are alike in every
second number and opposite in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value
from kernelyard_llvm.winograd.algorithm import Matrix

Transform = Callable[[FunctionEmitter, Matrix, Sequence[Value]], list[Value]]


def transform_by_rows(f: FunctionEmitter, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """Return the matrix times a column of vectors.

    Rows 1 and 2, 3 and 4, ... are of pairs, the first and last are not.
    """
    results = [combination(f, matrix[0], values)]
    for row in range(1, len(matrix) - 1, 2):
        shared = _part(matrix[row], matrix[row + 1], same=True)
        opposite = _part(matrix[row], matrix[row + 1], same=False)
        # The opposite part is a multiple of a sum that begins with 1, which one instruction then adds and subtracts.
        scale = opposite[max(i for i, number in enumerate(opposite) if number)]
        left = combination(f, shared, values)
        right = combination(f, [number / scale for number in opposite], values)
        if scale == 1:
            results += [f.add(left, right), f.sub(left, right)]
        else:
            results += [f.fma(right, sign * scale, left) for sign in (1, -1)]
    return [*results, combination(f, matrix[-1], values)]


def along_both(
    f: FunctionEmitter, transform: Transform, matrix: Matrix, grid: Sequence[Sequence[Value]]
) -> list[list[Value]]:
    """Return the matrix times a matrix of vectors times the transposed matrix."""
    columns = [transform(f, matrix, line) for line in zip(*grid, strict=True)]
    return [transform(f, matrix, line) for line in zip(*columns, strict=True)]


def _part(row: Sequence[float], other: Sequence[float], same: bool) -> list[float]:
    return [a if (a == b) == same else 0.0 for a, b in zip(row, other, strict=True)]


def transform_by_columns(f: FunctionEmitter, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """Return the matrix times a column of vectors; columns 1 and 2, 3 and 4, ... are of pairs."""
    pairs = range(1, len(values) - 1, 2)
    sums = {column: f.add(values[column], values[column + 1]) for column in pairs}
    differences = {column: f.sub(values[column], values[column + 1]) for column in pairs}
    results = []
    for row in matrix:
        terms = [(row[0], values[0]), (row[-1], values[-1])]
        terms += [(row[c], (sums if row[c] == row[c + 1] else differences)[c]) for c in pairs]
        results.append(combination(f, [number for number, _ in terms], [value for _, value in terms]))
    return results


def combination(f: FunctionEmitter, numbers: Sequence[float], values: Sequence[Value]) -> Value:
    """Return the sum of numbers times vectors; a number that is 1 costs no multiplication."""
    terms = sorted(((n, v) for n, v in zip(numbers, values, strict=True) if n), key=lambda term: term[0] != 1)
    (first, total), *others = terms
    if first != 1:
        total = f.mul(total, first)
    for number, value in others:
        total = f.add(total, value) if number == 1 else f.fma(value, number, total)
    return total
