"""Scaled dot-product attention, in the layout (batch, sequence, heads, size).

Sizes: queries (B, S, N, H), keys (B, T, M, H), values (B, T, M, D), result (B, S, N, D). N is a multiple of M: that
many query heads share a head of keys and values. In a cache the rows of a head lie one behind the other: keys
(B, M, T, H) and values (B, M, T, D), or in P pages of R rows (M, P, R, H) and (M, P, R, D) with a table (B, C) of pages
by sequence: pages that follow each other are read as one. A cache may have another float dtype than queries, pages also
int8 with a scale for each row of a head: (M, P, R).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare
from kernelyard.ops.numeric import in_float64
from kernelyard.ops.samples import floats
from kernelyard.ops.type_rules import (
    require,
    require_broadcastable,
    require_dtype,
    require_multiple,
    require_rank,
    require_same_dtype,
    unify,
)

CAUSAL = ("none", "top_left", "bottom_right")
ATTRIBUTES = {"scale": Attribute("float", None), "causal": Attribute("str", "none", CAUSAL)}
INDEX_DTYPES = ("int32", "int64")


# --- types ------------------------------------------------------------------------------------------------------------
def _attention_type(types: Sequence[TensorType], attrs: Attributes) -> TensorType:
    queries, keys, values = types[:3]
    for type_, name in zip(types, ("the queries", "the keys", "the values"), strict=False):
        require_rank(type_, 4, name)
    dtype = require_same_dtype(types[:3])
    require_dtype(queries, FLOATS)
    batch = unify(unify(queries.shape[0], keys.shape[0], "the batches"), values.shape[0], "the batches")
    unify(keys.shape[1], values.shape[1], "the sequences of keys and values")
    unify(queries.shape[3], keys.shape[3], "queries and keys")
    heads, shared = queries.shape[2], unify(keys.shape[2], values.shape[2], "the heads of keys and values")
    require_multiple(heads, shared, "heads of queries must be a multiple of those of keys")
    return TensorType((batch, queries.shape[1], heads, values.shape[3]), dtype)


def _with_bias_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    result = _attention_type(types[:3], attrs)
    require_same_dtype(types)
    batch, rows, heads, _ = result.shape
    require_broadcastable(types[3].shape, (batch, heads, rows, types[1].shape[1]), "the bias")
    return result


def _var_len_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    result = _attention_type(types[:3], attrs)
    for type_, name, rank in zip(types[3:], ("seqstart_q", "seqstart_k", "max_q", "max_k"), (1, 1, 0, 0), strict=True):
        require_rank(type_, rank, name)
        require_dtype(type_, INDEX_DTYPES, name)
    unify(types[3].shape[0], types[4].shape[0], "the starts of sequences of queries and keys")
    return result


def _cached_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    queries, keys, values, cached_keys, cached_values, lengths = types
    new = _attention_type((queries, keys, values), attrs)
    old = _attention_type((queries, *map(partial(_rows_first, queries.dtype), (cached_keys, cached_values))), attrs)
    unify(queries.shape[1], keys.shape[1], "the sequences of queries and keys")
    unify(keys.shape[2], cached_keys.shape[1], "the heads of keys and cached keys")
    unify(new.shape[3], old.shape[3], "values and cached values")
    require_rank(lengths, 1, "the lengths")
    require_dtype(lengths, INDEX_DTYPES, "the lengths")
    unify(lengths.shape[0], queries.shape[0], "the lengths and the batch")
    for name in ("window", "softcap"):
        require(attrs[name] is None or attrs[name] > 0, f"{name} must be positive", found=attrs[name])
    return new


def _rows_first(dtype: str, cached: TensorType) -> TensorType:
    """Return the type of a cache (B, M, T, H) as that of keys (B, T, M, H) of another dtype."""
    require_rank(cached, 4, "a cache")
    require_dtype(cached, FLOATS, "a cache")
    batch, heads, rows, size = cached.shape
    return TensorType((batch, rows, heads, size), dtype)


def _paged_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    queries, keys, values, key_pages, value_pages, tables, lengths, *scales = types
    require(len(scales) in (0, 2), "keys and values both have scales, or neither", found=len(scales))
    for part, pages in zip(scales, (key_pages, value_pages), strict=False):
        require_dtype(pages, ("int8",), "pages with scales")
        require_dtype(part, ("float32",), "scales")
        require_rank(part, 3, "scales")
        for size, of_pages in zip(part.shape, pages.shape, strict=False):
            unify(size, of_pages, "scales and pages")
    require_rank(key_pages, 4, "the pages of keys")
    require_rank(value_pages, 4, "the pages of values")
    require_rank(tables, 2, "the tables of pages")
    require_dtype(tables, INDEX_DTYPES, "the tables of pages")
    unify(key_pages.shape[1], value_pages.shape[1], "the pages of keys and values")
    batch = unify(tables.shape[0], queries.shape[0], "the tables and the batch")
    dtypes = [queries.dtype if scales else pages.dtype for pages in (key_pages, value_pages)]
    cached = (
        TensorType((batch, pages.shape[0], tables.shape[1] * pages.shape[2], pages.shape[3]), dtype)
        for pages, dtype in zip((key_pages, value_pages), dtypes, strict=True)
    )
    return _cached_type((queries, keys, values, *cached, lengths), attrs)


def _flops(types: Sequence[TensorType], result: Type, attrs: Attributes, cached: Dim = 0) -> Dim:
    (batch, rows, heads, size), columns = types[0].shape, types[1].shape[1] + cached
    return batch * heads * rows * columns * (2 * size + 2 * types[2].shape[3] + 5)


def _cached_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    return _flops(types, result, attrs, types[3].shape[2])


def _paged_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    return _flops(types, result, attrs, types[5].shape[1] * types[3].shape[2])


# --- reference --------------------------------------------------------------------------------------------------------
def _attend(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    scale: float | None,
    bias: np.ndarray | float,
    softcap: float | None = None,
) -> np.ndarray:
    group = queries.shape[2] // keys.shape[2]
    q, k, v = (np.moveaxis(x, 2, 1) for x in (queries, keys.repeat(group, 2), values.repeat(group, 2)))
    factor = 1 / math.sqrt(queries.shape[3]) if scale is None else scale
    products = q @ np.swapaxes(k, 2, 3) * factor
    scores = (products if softcap is None else np.tanh(products / softcap) * softcap) + bias
    powers = np.exp(scores - scores.max(3, keepdims=True))
    return np.moveaxis(powers / powers.sum(3, keepdims=True) @ v, 1, 2)


def _mask(visible: np.ndarray) -> np.ndarray:
    return np.where(visible, 0.0, -np.inf)


def _causal(causal: str, behind_start: np.ndarray, behind_end: np.ndarray) -> np.ndarray:
    """Compute the causal mask from the distance of each key behind the query, counted from either end."""
    if causal == "none":
        return np.ones_like(behind_start, bool)
    return (behind_start if causal == "top_left" else behind_end) <= 0


def _attention(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, *bias: np.ndarray, scale: float | None, causal: str
) -> np.ndarray:
    rows, columns = queries.shape[1], keys.shape[1]
    behind = np.arange(columns) - np.arange(rows)[:, None]
    mask = _mask(_causal(causal, behind, behind - columns + rows))
    return _attend(queries, keys, values, scale, sum(bias, mask))


def _attention_var_len(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    starts_q: np.ndarray,
    starts_k: np.ndarray,
    max_q: np.ndarray,
    max_k: np.ndarray,
    *,
    scale: float | None,
    causal: str,
) -> np.ndarray:
    rows, columns = np.arange(queries.shape[1]), np.arange(keys.shape[1])
    of_row, of_column = (np.searchsorted(s[1:-1], at, "right") for s, at in ((starts_q, rows), (starts_k, columns)))
    from_start, from_end = (
        (columns - starts_k[of_column + end]) - (rows - starts_q[of_row + end])[:, None] for end in (0, 1)
    )
    visible = (of_row[:, None] == of_column) & _causal(causal, from_start, from_end)
    return _attend(queries, keys, values, scale, _mask(visible))


def _attention_cached(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    cached_keys: np.ndarray,
    cached_values: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float | None,
    window: int | None,
    softcap: float | None,
) -> np.ndarray:
    rows, columns = np.arange(queries.shape[1])[:, None], np.arange(cached_keys.shape[2])
    begins = lengths.astype(np.int64)[:, None, None]
    behind_new = np.broadcast_to(rows - rows.T, (len(begins), len(rows), len(rows)))
    behind_old = begins + rows - columns
    visible = np.concatenate([np.broadcast_to(columns < begins, behind_old.shape), behind_new >= 0], 2)
    if window is not None:
        visible = visible & (np.concatenate([behind_old, behind_new], 2) < window)
    all_keys, all_values = (
        np.concatenate([np.swapaxes(old, 1, 2), new], 1) for old, new in ((cached_keys, keys), (cached_values, values))
    )
    return _attend(queries, all_keys, all_values, scale, _mask(visible)[:, None], softcap)


def _attention_paged(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    key_pages: np.ndarray,
    value_pages: np.ndarray,
    tables: np.ndarray,
    lengths: np.ndarray,
    *scales: np.ndarray,
    **attrs: Any,
) -> np.ndarray:
    if scales:
        key_pages, value_pages = key_pages * scales[0][..., None], value_pages * scales[1][..., None]
    places = tables.astype(np.int64)
    old_keys, old_values = (
        np.moveaxis(pages[:, places], 1, 0).reshape(len(tables), len(pages), -1, pages.shape[3])
        for pages in (key_pages, value_pages)
    )
    return _attention_cached(queries, keys, values, old_keys, old_values, lengths, **attrs)


# --- samples ----------------------------------------------------------------------------------------------------------
Sizes = tuple[int, int, int, int, int, int, int]  # B, S, T, N, M, H, D

PLAIN: Sizes = (2, 3, 5, 2, 2, 4, 4)


def _operands(sizes: Sizes, dtype: str = "float32") -> tuple[np.ndarray, ...]:
    batch, rows, columns, heads, shared, size, wide = sizes
    return (
        floats(batch, rows, heads, size, dtype=dtype),
        floats(batch, columns, shared, size, dtype=dtype, seed=1),
        floats(batch, columns, shared, wide, dtype=dtype, seed=2),
    )


def _attention_samples() -> Iterator[Sample]:
    yield Sample(_operands(PLAIN), label="plain")
    yield Sample(_operands((1, 7, 7, 3, 3, 5, 6)), {"scale": 0.3}, "odd sizes and a scale")
    yield Sample(_operands((2, 4, 6, 4, 2, 3, 5)), label="heads that share keys")
    yield Sample(_operands((1, 3, 6, 6, 1, 4, 4)), label="one head of keys")
    for causal in CAUSAL[1:]:
        yield Sample(_operands((1, 4, 6, 2, 2, 3, 3)), {"causal": causal}, causal)
    yield from (Sample(_operands(PLAIN, dtype), label=dtype) for dtype in ("float64", "float16"))
    yield Sample(_operands((1, 4, 4, 3, 3, 1, 1)), label="heads of one number")


def _bias_samples() -> Iterator[Sample]:
    for shape in ((2, 2, 3, 5), (2, 1, 1, 5), (1, 1, 3, 5), (5,)):
        yield Sample((*_operands(PLAIN), floats(*shape, seed=3)), label=f"bias of shape {shape}")
    yield Sample((*_operands(PLAIN), floats(3, 5, seed=3)), {"scale": 1.0, "causal": "top_left"}, "causal")


def _var_len_samples() -> Iterator[Sample]:
    def row(starts_q: Sequence[int], starts_k: Sequence[int], label: str, causal: str = "none") -> Sample:
        sizes: Sizes = (1, starts_q[-1], starts_k[-1], 2, 2, 4, 3)
        starts = [np.array(s, np.int32) for s in (starts_q, starts_k)]
        longest = [np.array(np.diff(s).max(), np.int32) for s in starts]
        return Sample((*_operands(sizes), *starts, *longest), {"causal": causal}, label)

    yield row((0, 2, 6, 9), (0, 2, 6, 9), "three sequences")
    yield row((0, 3, 4), (0, 5, 7), "more keys than queries")
    yield row((0, 3, 7), (0, 3, 7), "causal", "top_left")
    yield row((0, 3, 4), (0, 5, 7), "causal from the end", "bottom_right")


def _cached_samples() -> Iterator[Sample]:
    def row(
        sizes: Sizes,
        lengths: Sequence[int],
        label: str,
        dtype: str = "float32",
        cache: str | None = None,
        **attrs: float,
    ) -> Sample:
        batch, rows, columns, heads, shared, size, wide = sizes
        new = _operands((batch, rows, rows, heads, shared, size, wide), dtype)
        old = _operands((batch, 1, columns, 1, shared, size, wide), cache or dtype)[1:]
        old = (np.swapaxes(x, 1, 2) for x in old)
        return Sample((*new, *old, np.array(lengths, np.int64)), attrs, label)

    yield row((1, 1, 5, 2, 2, 4, 4), (3,), "one query")
    yield row((2, 3, 5, 4, 2, 4, 3), (5, 0), "a full cache and an empty one")
    yield row((1, 4, 6, 3, 1, 5, 5), (4,), "a window", window=3)
    yield row((1, 2, 4, 2, 1, 4, 4), (2,), "a soft cap and a scale", softcap=2.0, scale=1.5)
    yield row((1, 2, 3, 2, 1, 4, 4), (2,), "float64", "float64")
    yield row((1, 1, 5, 2, 2, 4, 4), (3,), "a cache of float16", cache="float16")


def _paged_samples() -> Iterator[Sample]:
    def row(
        sizes: Sizes,
        tables: Sequence[Sequence[int]],
        lengths: Sequence[int],
        label: str,
        dtype: str = "float32",
        **attrs: float,
    ) -> Sample:
        batch, rows, page, heads, shared, size, wide = sizes
        new = _operands((batch, rows, rows, heads, shared, size, wide))
        kept = "float32" if dtype == "int8" else dtype
        pages: Sequence[np.ndarray] = _operands((shared, 1, 5, 1, page, size, wide), kept)[1:]
        table, scales = np.array(tables, np.int64 if batch == 1 else np.int32), ()
        if dtype == "int8":
            pages = [np.round(100 * part).clip(-127, 127).astype(np.int8) for part in pages]
            scales = tuple(np.abs(floats(*part.shape[:3], seed=4)) / 100 for part in pages)
        return Sample((*new, *pages, table, np.array(lengths, np.int64), *scales), attrs, label)

    yield row((1, 1, 2, 2, 2, 4, 4), [[3, 1]], (3,), "one query")
    yield row((2, 3, 3, 4, 2, 4, 3), [[4, 2], [2, 0]], (6, 0), "a page that two share, and an empty cache")
    yield row((1, 4, 4, 3, 1, 5, 5), [[0, 4]], (7,), "a window", window=3)
    yield row((1, 2, 4, 2, 1, 4, 4), [[2]], (2,), "a soft cap and a scale", softcap=2.0, scale=1.5)
    yield row((1, 1, 2, 2, 2, 4, 4), [[3, 1]], (3,), "pages of float16", "float16")
    yield row((2, 2, 2, 4, 2, 4, 4), [[3, 1], [2, 4]], (3, 1), "pages of int8", "int8")


QKV = ("queries", "keys", "values")
STARTS = ("seqstart_q", "seqstart_k", "max_seqlen_q", "max_seqlen_k")

for _name, _inputs, _rule, _reference, _samples, _summary in (
    (
        "nn.attention",
        QKV,
        _attention_type,
        _attention,
        _attention_samples,
        "softmax(queries @ keys.T * scale) @ values per head, of tensors (batch, sequence, heads, size)",
    ),
    (
        "nn.attention_bias",
        (*QKV, "bias"),
        _with_bias_type,
        _attention,
        _bias_samples,
        "attention with a bias added to the scores (batch, heads, queries, keys)",
    ),
    (
        "nn.attention_var_len",
        (*QKV, *STARTS),
        _var_len_type,
        _attention_var_len,
        _var_len_samples,
        "attention within sequences of various lengths, packed one after the other",
    ),
):
    declare(
        _name,
        _inputs,
        _rule,
        in_float64(_reference),
        attributes=ATTRIBUTES,
        samples=_samples,
        flops=_flops,
        summary=_summary,
    )
CACHE_ATTRIBUTES = {
    "scale": Attribute("float", None),
    "window": Attribute("int", None),
    "softcap": Attribute("float", None),
}
declare(
    "nn.attention_cached",
    (*QKV, "cached_keys", "cached_values", "lengths"),
    _cached_type,
    in_float64(_attention_cached),
    attributes=CACHE_ATTRIBUTES,
    samples=_cached_samples,
    flops=_cached_flops,
    summary="causal attention to lengths[i] rows of a cache (batch, heads, rows, size) and to new ones; window: reach",
)
declare(
    "nn.attention_paged",
    (*QKV, "key_pages", "value_pages", "tables", "lengths", "key_scales", "value_scales"),
    _paged_type,
    in_float64(_attention_paged),
    attributes=CACHE_ATTRIBUTES,
    samples=_paged_samples,
    optional_inputs=2,
    flops=_paged_flops,
    summary="nn.attention_cached whose cache lies in pages (heads, pages, rows, size): those of tables[i] in turn",
)
