"""Interpolation along one axis as a matrix, for the ways to resize that the op `image.resize` does not have.

Definitions: https://onnx.ai/onnx/operators/onnx__Resize.html; the cubic kernel is that of Keys (1981). With antialias,
a kernel is stretched by the factor of shrinking.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# Position in the output, and (input size, output size, scale) -> position in the input.
Coordinates = Callable[[float, int, int, float], float]
COORDINATES: dict[str, Coordinates] = {
    "half_pixel": lambda x, size, out, scale: (x + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda x, size, out, scale: (x + 0.5) / scale - 0.5 if out > 1 else 0.0,
    "align_corners": lambda x, size, out, scale: x * (size - 1) / (out - 1) if out > 1 else 0.0,
    "asymmetric": lambda x, size, out, scale: x / scale,
    "half_pixel_symmetric": lambda x, size, out, scale: (x + 0.5) / scale - 0.5 + size / 2 * (1 - out / (scale * size)),
}


def _linear(distance: np.ndarray, a: float) -> np.ndarray:
    return np.clip(1 - np.abs(distance), 0, 1)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


# method -> (kernel, how far it reaches to each side)
KERNELS: dict[str, tuple[Callable[[np.ndarray, float], np.ndarray], int]] = {
    "linear": (_linear, 1),
    "cubic": (_cubic, 2),
}


def interpolation_matrix(
    size: int,
    out: int,
    scale: float,
    *,
    method: str,
    coordinates: str,
    cubic_coeff_a: float,
    antialias: bool,
    exclude_outside: bool,
) -> np.ndarray:
    """Return the matrix (out, size), float64, whose product with a signal of `size` samples is the resized signal."""
    kernel, reach = KERNELS[method]
    stretch = min(scale, 1.0) if antialias else 1.0
    matrix = np.zeros((out, size))
    for row in range(out):
        centre = COORDINATES[coordinates](row, size, out, scale)
        first = math.floor(centre - reach / stretch) + 1
        taps = np.arange(first, math.ceil(centre + reach / stretch))
        weights = kernel((taps - centre) * stretch, cubic_coeff_a)
        if exclude_outside:
            weights = np.where((taps >= 0) & (taps < size), weights, 0)
        if exclude_outside or antialias:
            weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(taps, 0, size - 1), weights)
    return matrix


def crop_positions(size: int, out: int, begin: float, end: float) -> np.ndarray:
    """Return the positions of `out` samples over the crop from `begin` to `end` of a signal (0 and 1: its ends)."""
    if out == 1:
        return np.array([(begin + end) / 2 * (size - 1)])
    return begin * (size - 1) + np.arange(out) * (end - begin) * (size - 1) / (out - 1)


def sampling_matrix(positions: np.ndarray, size: int, method: str, cubic_coeff_a: float) -> np.ndarray:
    """Return the matrix (positions, size) that samples a signal; positions outside of it give 0."""
    matrix = np.zeros((len(positions), size))
    for row, centre in enumerate(positions):
        if not 0 <= centre <= size - 1:
            continue
        if method == "nearest":
            matrix[row, math.ceil(centre - 0.5)] = 1
            continue
        kernel, reach = KERNELS[method]
        taps = np.arange(math.floor(centre - reach) + 1, math.floor(centre + reach) + 1)
        np.add.at(matrix[row], np.clip(taps, 0, size - 1), kernel(taps - centre, cubic_coeff_a))
    return matrix
