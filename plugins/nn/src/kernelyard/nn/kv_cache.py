"""KV caches as effects: one that grows, and a sliding window of a fixed size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import FrontendError
from kernelyard.nn import scope
from kernelyard.nn import spec as specs
from kernelyard.nn.effect import Effect
from kernelyard.nn.op.elementwise import where
from kernelyard.nn.op.shape import arange, concat, strided_slice
from kernelyard.nn.tensor import Tensor


class KVCache(Effect):
    """A growing KV cache: rows (length, *unit_shape), to which each call appends. It begins empty.

    max_length: the most rows that there may be; a call that would have more is a ShapeError before anything runs.
    slots: the symbol of `length + 1` at the beginning of a call (a size is at least 1); all caches that grow together
    have the same, and specs may use it: `"slots - 1 + n"`. Each length is planned for anew; see `WindowKVCache`.
    Raises: FrontendError for sizes that are no positive numbers, UnknownDtypeError.

    Example:
        >>> KVCache((8, 64), max_length=2048).initial()["rows"].shape
        (0, 8, 64)
    """

    def __init__(
        self, unit_shape: Sequence[int], dtype: str = "float32", max_length: int | None = None, slots: str = "slots"
    ) -> None:
        _check_sizes(*unit_shape, *(() if max_length is None else (max_length,)))
        super().__init__({"rows": specs.Tensor([dims.symbol(slots) - 1, *unit_shape], dtype)})
        self.unit_shape, self.max_length = tuple(unit_shape), max_length

    @property
    def length(self) -> Dim:
        """The number of cached rows."""
        return self.read("rows").shape[0]

    def append(self, rows: Tensor) -> None:
        """Add rows (count, *unit_shape). Raises: FrontendError for others."""
        _check_rows(self, rows)
        grown = concat([self.read("rows"), rows])
        if self.max_length is not None:
            # The sizes must agree, which is checked before a program runs.
            grown = grown.reshape(dims.minimum(grown.shape[0], self.max_length), *grown.shape[1:])
        self.write("rows", grown)

    def view(self, length: Dim | None = None) -> Tensor:
        """Return all rows that there are now, or the first `length` of them."""
        rows = self.read("rows")
        return rows if length is None else strided_slice(rows, [0], [0], [length])


class WindowKVCache(Effect):
    """The last `window` rows that attention has seen: always (window, *unit_shape), so that every step has one plan.

    The newest row is the last one. As long as fewer have been seen, the first rows stand for none; `mask` hides these.
    Raises: FrontendError for sizes that are no positive numbers, UnknownDtypeError.

    Example:
        >>> {name: state.shape for name, state in WindowKVCache((8, 64), window=2048).initial().items()}
        {'rows': (2048, 8, 64), 'length': ()}
    """

    def __init__(self, unit_shape: Sequence[int], window: int, dtype: str = "float32") -> None:
        _check_sizes(*unit_shape, window)
        super().__init__({"rows": specs.Tensor([window, *unit_shape], dtype), "length": specs.Tensor([], "int64")})
        self.unit_shape, self.window = tuple(unit_shape), window

    @property
    def length(self) -> Tensor:
        """The number of rows appended so far, evicted ones included: (), int64."""
        return self.read("length")

    def append(self, rows: Tensor) -> None:
        """Add rows (count, *unit_shape), and forget as many. Raises: FrontendError for others."""
        _check_rows(self, rows)
        count = rows.shape[0]
        grown = concat([self.read("rows"), rows])
        self.write("rows", strided_slice(grown, [0], [count], [count + self.window]))
        self.write("length", self.length + arange(count, count + 1).reshape())

    def view(self) -> Tensor:
        """Return the rows, the newest last."""
        return self.read("rows")

    def mask(self) -> Tensor:
        """Return the additive mask of scores (batch, heads, queries, window): 0, or minus infinity for empty rows."""
        dtype = dtypes.to_numpy(self.states["rows"].dtype)
        is_row = arange(self.window) >= self.window - self.length
        return where(is_row, np.zeros((), dtype), np.asarray(-np.inf, dtype)).reshape(1, 1, 1, self.window)


def _check_sizes(*sizes: object) -> None:
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            raise FrontendError("the sizes of a cache must be positive integers", found=repr(size))


def _check_rows(cache: KVCache | WindowKVCache, rows: Tensor) -> None:
    dtype = cache.states["rows"].dtype
    if rows.ndim == 0 or rows.shape[1:] != cache.unit_shape or rows.dtype != dtype:
        raise FrontendError(
            "rows of another type are appended to the cache",
            where=scope.current().origin or None,
            found=repr(rows),
            expected=f"(count, {', '.join(map(str, cache.unit_shape))}), {dtype!r}",
        )
