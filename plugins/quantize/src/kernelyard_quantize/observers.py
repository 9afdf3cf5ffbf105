"""Observers: from all numbers that a value takes during calibration, the range that is worth storing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from kernelyard_quantize.parameters import Range

ObserverName: TypeAlias = Literal["minmax", "percentile", "entropy"]
BINS = 2048
LEVELS = 256  # numbers that 8 bits tell apart
_PERCENTILE = 99.99
_CANDIDATES = 64  # ranges that the entropy observer compares


class Observer(ABC):
    """Sees the numbers of one value, an array at a time; keeps a bounded summary of them."""

    @abstractmethod
    def see(self, array: np.ndarray) -> None:
        """Take in an array."""

    @property
    @abstractmethod
    def range(self) -> Range:
        """The range to store."""


class MinMax(Observer):
    """The least and the largest number.

    Example:
        >>> observer = MinMax()
        >>> observer.see(np.array([1.0, -2.0])), observer.see(np.array([5.0]))
        (None, None)
        >>> observer.range
        Range(low=-2.0, high=5.0)
    """

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf

    def see(self, array: np.ndarray) -> None:
        if array.size:
            self._low, self._high = min(self._low, float(array.min())), max(self._high, float(array.max()))

    @property
    def range(self) -> Range:
        return Range(self._low, self._high) if self._low <= self._high else Range(0.0, 0.0)


class _Histogram(Observer):
    """Counts in equal bins around 0. The bins become wider by powers of two, neighbours merged, when numbers lie
    outside, so that one pass over the data is enough and old counts stay exact."""

    def __init__(self) -> None:
        self._extremes = MinMax()
        self._bound = 0.0  # the bins cover [-bound, bound]
        self._counts = np.zeros(BINS, np.int64)

    def see(self, array: np.ndarray) -> None:
        if not array.size:
            return
        self._extremes.see(array)
        extreme = float(np.abs(array).max())
        if self._bound == 0.0:
            self._bound = extreme
        while extreme > self._bound > 0.0:
            self._widen()
        if self._bound > 0.0:
            self._counts += np.histogram(array, BINS, (-self._bound, self._bound))[0]

    def _widen(self) -> None:
        merged = self._counts.reshape(-1, 2).sum(axis=1)
        self._counts = np.concatenate([np.zeros(BINS // 4, np.int64), merged, np.zeros(BINS // 4, np.int64)])
        self._bound *= 2

    def _edges(self) -> np.ndarray:
        return np.linspace(-self._bound, self._bound, BINS + 1)

    def _cut(self, low: float, high: float) -> Range:
        """Return a range within what was seen."""
        least, most = self._extremes.range
        return Range(max(least, low), min(most, high))


class Percentile(_Histogram):
    """The range of all but the smallest and the largest numbers: 0.01 % of them together."""

    @property
    def range(self) -> Range:
        total = self._counts.sum()
        if not total:
            return self._extremes.range
        share = (100 - _PERCENTILE) / 200
        reached = np.cumsum(self._counts) / total
        first, last = np.searchsorted(reached, share, "right"), np.searchsorted(reached, 1 - share)
        edges = self._edges()
        return self._cut(edges[first], edges[min(last, BINS - 1) + 1])


class Entropy(_Histogram):
    """The range whose stored numbers lose the least information: the least Kullback-Leibler divergence.

    Source: Migacz 2017, "8-bit inference with TensorRT". Candidates shrink both sides of the range alike; what lies
    outside counts as the outermost number.
    """

    @property
    def range(self) -> Range:
        least, most = self._extremes.range
        if not self._counts.any():
            return self._extremes.range
        edges = self._edges()
        shares = np.linspace(1.0, 1.0 / _CANDIDATES, _CANDIDATES)
        _, best = min((self._divergence(edges, least * share, most * share), -share) for share in shares)
        return self._cut(-best * least, -best * most)

    def _divergence(self, edges: np.ndarray, low: float, high: float) -> float:
        first = int(np.clip(np.searchsorted(edges, low, "right") - 1, 0, BINS - 1))
        last = int(np.clip(np.searchsorted(edges, high), first + 1, BINS))
        counts = self._counts[first:last].astype(np.float64)
        stored = _through_levels(counts)
        counts[0] += self._counts[:first].sum()
        counts[-1] += self._counts[last:].sum()
        return _divergence(counts, stored)


def _through_levels(counts: np.ndarray) -> np.ndarray:
    """Return counts as they are after quantization: those of a level spread over its bins that are not empty."""
    level = np.arange(len(counts)) * LEVELS // max(len(counts), LEVELS)
    full = counts > 0
    sums = np.bincount(level, counts)
    bins = np.bincount(level, full)
    return np.where(full, (sums / np.maximum(bins, 1))[level], 0.0)


def _divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Return the Kullback-Leibler divergence of counts; bins that only `p` has are given a small share of `q`."""
    q = np.where((p > 0) & (q == 0), 1e-3, q)
    used = p > 0
    p, q = p[used] / p[used].sum(), q[used] / q[used].sum()
    return float((p * np.log(p / q)).sum())


OBSERVERS: Mapping[str, type[Observer]] = {"minmax": MinMax, "percentile": Percentile, "entropy": Entropy}
