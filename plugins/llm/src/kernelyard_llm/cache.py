"""Hold keys and values of all layers in pages, as the program reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelyard_llm.configuration import PAGE, ModelConfig


class CachePages:
    """Arrays of each layer: keys and values (heads, pages, PAGE, size), of int8 also their scales (heads, pages, PAGE).

    A head's rows of pages that follow each other lie one behind the other in memory.
    """

    def __init__(self, config: ModelConfig, count: int) -> None:
        rows = (config.kv_heads, count, PAGE)
        sizes = [(*rows, config.head_size)] * 2 + [rows] * 2
        dtypes = [config.cache_dtype] * 2 + ["float32"] * 2
        # Memory of zeros is the system's until it is written.
        self._parts = [
            [np.zeros(size, dtype) for _ in config.layers]
            for size, dtype, _ in zip(sizes, dtypes, config.cache_parts, strict=False)
        ]
        self.arguments = [array for part in self._parts for array in part]

    @property
    def nbytes(self) -> int:
        """The bytes of all pages."""
        return sum(array.nbytes for array in self.arguments)

    def write(self, pages: Any, rows: Any, new: Sequence[np.ndarray]) -> None:
        """Write rows to their places. pages, rows: one index each, or arrays of them (count,).

        new: of each layer, rows (count, heads, ...) of each part in turn; without the first axis for one index.
        """
        is_one = np.ndim(pages) == 0
        for number, values in enumerate(new):
            layer, part = divmod(number, len(self._parts))
            self._parts[part][layer][:, pages, rows] = values if is_one else values.swapaxes(0, 1)
