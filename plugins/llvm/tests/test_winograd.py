"""The arithmetic of Winograd's algorithm, and which convolutions gain by it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kernelyard_llvm.winograd import algorithm
from kernelyard_llvm.winograd.choice import Shape, best_tile

TILES = tuple(algorithm.PAIRS)


@pytest.mark.parametrize("m", TILES)
def test_transforms_are_exact(m):
    """In exact arithmetic a tile gives what the convolution gives, but for the rounded numbers of G."""
    data = [Fraction(i * i - 5 * i + 2) for i in range(algorithm.size_of_tile(m))]
    window = [Fraction(3), Fraction(-1, 2), Fraction(7)]

    def times(matrix, vector):
        return [sum((Fraction(a) * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    products = zip(times(algorithm.weight_transform(m), window), times(algorithm.data_transform(m), data), strict=True)
    found = times(algorithm.result_transform(m), [a * b for a, b in products])
    expected = [sum(data[i + k] * window[k] for k in range(3)) for i in range(m)]
    assert all(abs(a - b) < 1e-13 for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape(1, 56, 56, 64, 64), 4),
        (Shape(1, 14, 14, 256, 256), 4),
        (Shape(8, 7, 7, 512, 512), 4),
        (Shape(1, 2, 2, 512, 512), None),  # its weights come from memory either way
        (Shape(1, 224, 224, 3, 8), None),  # most of a vector of channels is empty
        (Shape(1, 1, 1, 64, 64), None),
        (Shape(0, 56, 56, 64, 64), None),
        (Shape(1, 56, 56, 0, 64), None),
    ],
    ids=str,
)
def test_who_gains(shape, expected):
    assert best_tile(shape, lanes=16) == expected
