"""The arithmetic of Winograd's algorithm, which convolutions gain by it, and functions of its emitter, compiled and run."""

from __future__ import annotations

import ctypes
import math
from fractions import Fraction

import numpy as np
import pytest

from kernelyard.runtime.jit import linking
from kernelyard_llvm.winograd import algorithm
from kernelyard_llvm.winograd.choice import Shape, best_tile
from kernelyard_llvm.winograd.emitter import Emitter

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


def function(f, *types):
    """What an emitter wrote, to be called."""
    made = linking.compile_text(f.module(), {}, (f.name,), ())
    called = ctypes.CFUNCTYPE(None, *types)(made.addresses[f.name])
    return lambda *arguments: (called(*arguments), made)


def test_loops_and_conditions():
    """for i in 1, 3, 5: place[i] += 1 unless i is 3; nothing where the first is the last."""
    f = Emitter("count", ["ptr %place", "i64 %last"], lanes=8)
    with f.loop("1", "%last", "2") as i, f.when(f.negated(f.compare("eq", i, "3"))):
        place = f.at("%place", f.integer("mul", i, "8"))
        f.store(f.add(f.load(place), f.splat(1)), place)
    count = function(f, ctypes.c_void_p, ctypes.c_int64)
    places = np.zeros((8, 8), np.float32)
    count(places.ctypes.data, 1)
    assert not places.any()
    count(places.ctypes.data, 7)
    assert places[:, 0].tolist() == [0, 1, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("value", [0.1, -3.0, 1e39, -1e39, math.inf, 1e-45])
def test_numbers_of_any_size(value):
    f = Emitter("fill", ["ptr %place"], lanes=8)
    f.store(f.add(f.load("%place"), f.splat(value)), "%place")
    place = np.zeros(8, np.float32)
    function(f, ctypes.c_void_p)(place.ctypes.data)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(place, np.float32(value))
