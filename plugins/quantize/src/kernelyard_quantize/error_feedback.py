"""Error feedback: weights rounded one row after another, each correcting what rounding did to the results before.

Source: Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(arXiv:2210.17323), without its reordering.
"""

from __future__ import annotations

import numpy as np

_LEAST, _LARGEST = -8, 7  # of 4 bits
_DAMPING = 0.01  # of the mean second moment, so that the matrix can be inverted


def with_error_feedback(matrix: np.ndarray, scales: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix (K, N) as 4-bit integers that make a small error in `x @ matrix`, for rows x like those seen.

    scales: (groups, 1, N), which stay. factor: (K, K), the `inverse_factor` of the second moments of rows x.
    Returns codes, int8 (groups, K / groups rounded up, N), and the scales.
    """
    count = len(matrix)
    size = -(-count // len(scales))
    left = matrix.astype(np.float64)
    codes = np.zeros((len(scales) * size, matrix.shape[1]), np.int8)
    for start in range(0, count, size):
        end = min(start + size, count)
        scale = scales[start // size, 0].astype(np.float64)
        errors = np.zeros((end - start, matrix.shape[1]))
        for row in range(start, end):
            code = np.clip(np.rint(left[row] / scale), _LEAST, _LARGEST)
            codes[row] = code
            error = errors[row - start] = (left[row] - code * scale) / factor[row, row]
            left[row + 1 : end] -= np.outer(factor[row, row + 1 : end], error)
        left[end:] -= factor[start:end, end:].T @ errors
    return codes.reshape(len(scales), size, -1), scales


def inverse_factor(moments: np.ndarray) -> np.ndarray:
    """Return the upper Cholesky factor of the inverse of a damped matrix of second moments.

    moments: (K, K), the sum of the outer products of rows x with themselves.
    """
    diagonal = np.diagonal(moments)
    damping = max(_DAMPING * float(diagonal.mean()), np.finfo(np.float64).tiny ** 0.5)
    damped = moments + np.diag(np.where(diagonal > 0, damping, 1.0))
    return np.linalg.cholesky(np.linalg.inv(damped)).T


def dequantize_groups(codes: np.ndarray, scales: np.ndarray, rows: int) -> np.ndarray:
    """Return the matrix that codes (groups, size, N) with scales (groups, 1, N) stand for."""
    return (codes * scales).reshape(-1, codes.shape[2])[:rows]


def output_error(difference: np.ndarray, moments: np.ndarray) -> float:
    """Return the squared error that a difference of weights makes in the results, summed over the rows seen."""
    return float((difference * (moments @ difference)).sum())
