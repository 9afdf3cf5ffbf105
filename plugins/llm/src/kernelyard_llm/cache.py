"""Hold keys and values of all layers in pages, as the program reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard_llm.configuration import PAGE, ModelConfig

_FIRST_PAGES = 8


class CachePages:
    """Keys and values (layers, heads, pages, PAGE, size), of int8 also their scales (layers, heads, pages, PAGE).

    A head's rows of pages that follow each other lie one behind the other in memory. most: pages there may be; memory
    is taken for a few, and for twice as many where they are not enough: what is spread over memory that is large costs
    a large page of the system at each place.
    """

    def __init__(self, config: ModelConfig, most: int) -> None:
        self._most, self._count = most, min(most, _FIRST_PAGES)
        rows = (len(config.layers), config.kv_heads, self._count, PAGE)
        sizes = [(*rows, config.head_size)] * 2 + [rows] * 2
        dtypes = [config.cache_dtype] * 2 + ["float32"] * 2
        parts = zip(sizes, dtypes, config.cache_parts, strict=False)
        self._parts: list[np.ndarray] = [np.zeros(size, to_numpy(dtype)) for size, dtype, _ in parts]
        self.arguments = self._layers()

    def reserve(self, count: int) -> None:
        """Have at least so many pages, of the most that there may be."""
        if count <= self._count:
            return
        before, self._count = self._count, min(self._most, max(count, 2 * self._count))
        for number, part in enumerate(self._parts):
            self._parts[number] = np.zeros((*part.shape[:2], self._count, *part.shape[3:]), part.dtype)
            self._parts[number][:, :, :before] = part
        self.arguments = self._layers()

    def _layers(self) -> list[np.ndarray]:
        return [layer for part in self._parts for layer in part]

    def write(self, pages: Any, rows: Any, new: Sequence[np.ndarray]) -> None:
        """Write rows to their places. pages, rows: one index each, or arrays of them (count,).

        new: of each part, rows (layers, count, heads, ...); without the second axis for one index.
        """
        is_one = np.ndim(pages) == 0
        for part, values in zip(self._parts, new, strict=True):
            part[:, :, pages, rows] = values if is_one else values.swapaxes(1, 2)
