"""Hold keys and values of all layers in pages, as the program reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard_llm.configuration import PAGE, ModelConfig


class CachePages:
    """Keys and values (layers, heads, pages, PAGE, size), of int8 also their scales (layers, heads, pages, PAGE).

    A head's rows of pages that follow each other lie one behind the other in memory.
    """

    def __init__(self, config: ModelConfig, count: int) -> None:
        rows = (len(config.layers), config.kv_heads, count, PAGE)
        sizes = [(*rows, config.head_size)] * 2 + [rows] * 2
        dtypes = [config.cache_dtype] * 2 + ["float32"] * 2
        # Memory of zeros is the system's until it is written.
        parts = zip(sizes, dtypes, config.cache_parts, strict=False)
        self._parts = [np.zeros(size, to_numpy(dtype)) for size, dtype, _ in parts]
        self.arguments = [layer for part in self._parts for layer in part]

    def write(self, pages: Any, rows: Any, new: Sequence[np.ndarray]) -> None:
        """Write rows to their places. pages, rows: one index each, or arrays of them (count,).

        new: of each part, rows (layers, count, heads, ...); without the second axis for one index.
        """
        is_one = np.ndim(pages) == 0
        for part, values in zip(self._parts, new, strict=True):
            part[:, :, pages, rows] = values if is_one else values.swapaxes(1, 2)
