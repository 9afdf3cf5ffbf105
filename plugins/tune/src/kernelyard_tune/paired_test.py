"""Decide which of two programs is faster, from times that were taken in turns: what slows one turn slows both.

Source of the test: F. Wilcoxon, "Individual Comparisons by Ranking Methods", Biometrics Bulletin 1 (1945), with the
normal approximation of its rank sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

LEAST_PAIRS = 6  # fewer cannot be significant


class Comparison(NamedTuple):
    """ratio: the median of b's time to a's, pair by pair. p: how likely noise alone makes such a difference."""

    ratio: float
    p: float


def compare(a: np.ndarray, b: np.ndarray) -> Comparison:
    """Compare two series of positive seconds, shape (n,), float64, whose elements are pairs.

    Example:
        >>> times = np.linspace(1, 2, 20)
        >>> slower = compare(times, times * 1.5)
        >>> round(slower.ratio, 6), slower.p < 0.001
        (1.5, True)
        >>> compare(times, times)
        Comparison(ratio=1.0, p=1.0)
    """
    logarithms = np.log(b) - np.log(a)
    if not logarithms.size:
        return Comparison(1.0, 1.0)
    return Comparison(float(np.exp(np.median(logarithms))), signed_rank_p(logarithms))


def signed_rank_p(differences: np.ndarray) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, shape (n,); zeros are left out."""
    kept = differences[differences != 0]
    count = len(kept)
    if count < LEAST_PAIRS:
        return 1.0
    ranks, sizes_of_ties = _ranks(np.abs(kept))
    positive = float(ranks[kept > 0].sum())
    mean = count * (count + 1) / 4
    variance = count * (count + 1) * (2 * count + 1) / 24 - float((sizes_of_ties**3 - sizes_of_ties).sum()) / 48
    if variance <= 0:
        return 1.0
    return math.erfc(abs(positive - mean) / math.sqrt(2 * variance))


def _ranks(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks from 1, those of equal values averaged, and how many values share each rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse], counts.astype(np.float64)
