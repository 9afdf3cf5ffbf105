"""Rules of attention: scores, a softmax per query, and the values weighted by it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce as fold
from typing import Any

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.legalize.common import broadcast_index
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.ops.type_rules import unify
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, DimValue, Expr, binary, cast, const, equal, index, select, unary

Score = Callable[[Expr, Expr, Expr, Expr, Expr], Expr]  # score, batch, head, row, column -> what is added up to


@legalize("nn.attention", widen=True)
def attention(b: RuleBuilder, q: Operand, k: Operand, v: Operand, *, scale: float | None, causal: str) -> Buffer:
    return _attend(b, q, k, v, scale, _causal(q, k, causal))


@legalize("nn.attention_bias", widen=True)
def attention_bias(
    b: RuleBuilder, q: Operand, k: Operand, v: Operand, bias: Operand, *, scale: float | None, causal: str
) -> Buffer:
    target = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    masked = _causal(q, k, causal)

    def body(score: Expr, *at: Expr) -> Expr:
        return masked(score + bias[broadcast_index(bias.shape, target, at)], *at)

    return _attend(b, q, k, v, scale, body)


@legalize("nn.attention_var_len", widen=True)
def attention_var_len(
    b: RuleBuilder,
    q: Operand,
    k: Operand,
    v: Operand,
    starts_q: Operand,
    starts_k: Operand,
    max_q: Operand,
    max_k: Operand,
    *,
    scale: float | None,
    causal: str,
) -> Buffer:
    of_row, of_column = _sequence_of(b, starts_q, q.shape[1]), _sequence_of(b, starts_k, k.shape[1])
    end = int(causal == "bottom_right")

    def body(score: Expr, batch: Expr, head: Expr, row: Expr, column: Expr) -> Expr:
        sequence = of_row[row]
        visible = equal(sequence, of_column[column])
        if causal != "none":
            start_q, start_k = (cast(s[sequence + end], "int64") for s in (starts_q, starts_k))
            visible = visible & (column - start_k <= row - start_q)
        return select(visible, score, const(-math.inf, score.dtype))

    return _attend(b, q, k, v, scale, body)


@legalize("nn.attention_cached", widen=True)
def attention_cached(
    b: RuleBuilder,
    q: Operand,
    k: Operand,
    v: Operand,
    cached_k: Operand,
    cached_v: Operand,
    lengths: Operand,
    **attrs: Any,
) -> Buffer:
    return _attend_cache(b, q, k, v, _Cached(cached_k, k.dtype), _Cached(cached_v, v.dtype), lengths, **attrs)


def _attend_cache(
    b: RuleBuilder,
    q: Operand,
    k: Operand,
    v: Operand,
    cached_k: _Cached | _Paged,
    cached_v: _Cached | _Paged,
    lengths: Operand,
    *,
    scale: float | None,
    window: int | None,
    softcap: float | None,
) -> Buffer:
    """Emit one softmax over the cached and the new rows, without a copy that joins them."""

    def cap(score: Expr) -> Expr:
        return score if softcap is None else unary("tanh", score / softcap) * softcap

    def old(score: Expr, batch: Expr, head: Expr, row: Expr, column: Expr) -> Expr:
        length = cast(lengths[batch], "int64")
        near = () if window is None else (length + row - column < window,)
        return select(fold(operator.and_, near, column < length), cap(score), const(-math.inf, score.dtype))

    def new(score: Expr, batch: Expr, head: Expr, row: Expr, column: Expr) -> Expr:
        near = () if window is None else (row - column < window,)
        return select(fold(operator.and_, near, column <= row), cap(score), const(-math.inf, score.dtype))

    parts = [_scores(b, q, keys, scale, finished) for keys, finished in ((cached_k, old), (k, new))]
    maxima = [_reduce_over_columns(b, "max", part) for part in parts]
    largest = b.compute(maxima[0].shape, lambda *at: binary("max", maxima[0][at], maxima[1][at]), "largest")
    powers = [_powers(b, part, largest) for part in parts]
    totals = [_reduce_over_columns(b, "sum", part) for part in powers]
    weighted = [_weight_values(b, part, values) for part, values in zip(powers, (cached_v, v), strict=True)]

    def average(i: Expr, s: Expr, n: Expr, d: Expr) -> Expr:
        return (weighted[0][i, s, n, d] + weighted[1][i, s, n, d]) / (totals[0][i, n, s] + totals[1][i, n, s])

    return b.compute(b.result.shape, average)


@legalize("nn.attention_paged", widen=True)
def attention_paged(
    b: RuleBuilder,
    q: Operand,
    k: Operand,
    v: Operand,
    key_pages: Operand,
    value_pages: Operand,
    tables: Operand,
    lengths: Operand,
    *scales: Operand,
    **attrs: Any,
) -> Buffer:
    key_scales, value_scales = scales or (None, None)
    keys = _Paged(key_pages, tables, k.dtype, key_scales)
    values = _Paged(value_pages, tables, v.dtype, value_scales)
    return _attend_cache(b, q, k, v, keys, values, lengths, **attrs)


class _Cached:
    """The rows of a cache (batch, heads, rows, size) with axes in the order of keys: (batch, rows, heads, size)."""

    def __init__(self, cached: Operand, dtype: str) -> None:
        batch, heads, rows, size = cached.shape
        self._cached, self.dtype, self.shape = cached, dtype, (batch, rows, heads, size)

    def __getitem__(self, at: tuple[Expr, ...]) -> Expr:
        batch, row, head, place = at
        return cast(self._cached[batch, head, row, place], self.dtype)


class _Paged:
    """The rows of pages (heads, pages, rows, size) in the order of tables, as keys (batch, rows, heads, size)."""

    def __init__(self, pages: Operand, tables: Operand, dtype: str, scales: Operand | None) -> None:
        heads, _, rows, size = pages.shape
        self._pages, self._tables, self._scales, self.dtype = pages, tables, scales, dtype
        self.shape = (tables.shape[0], tables.shape[1] * rows, heads, size)

    def __getitem__(self, at: tuple[Expr, ...]) -> Expr:
        batch, row, head, place = at
        size = index(self._pages.shape[2])
        here = (head, cast(self._tables[batch, row // size], INDEX), row % size)
        value = cast(self._pages[(*here, place)], self.dtype)
        return value if self._scales is None else value * cast(self._scales[here], self.dtype)


def _causal(q: Operand, k: Operand, causal: str) -> Score:
    if causal == "none":
        return lambda score, *at: score
    ahead = index(k.shape[1]) - index(q.shape[1]) if causal == "bottom_right" else index(0)

    def body(score: Expr, batch: Expr, head: Expr, row: Expr, column: Expr) -> Expr:
        return select(column <= row + ahead, score, const(-math.inf, score.dtype))

    return body


def _sequence_of(b: RuleBuilder, starts: Operand, length: Dim) -> Buffer:
    """Return the number of the sequence that each position belongs to: how many of the others have begun before it."""
    others = starts.shape[0] - 2
    return b.reduce(
        "sum",
        (length,),
        (others,),
        lambda at, point: cast(cast(starts[point[0] + 1], "int64") <= at[0], "int64"),
        name="sequence",
    )


def _attend(b: RuleBuilder, q: Operand, k: Operand, v: Operand, scale: float | None, finished: Score) -> Buffer:
    scores = _scores(b, q, k, scale, finished)
    powers = _powers(b, scores, _reduce_over_columns(b, "max", scores))
    total = _reduce_over_columns(b, "sum", powers)
    weighted = _weight_values(b, powers, v)
    return b.compute(weighted.shape, lambda i, s, n, d: weighted[i, s, n, d] / total[i, n, s])


def _scores(b: RuleBuilder, q: Operand, k: Operand | _Cached | _Paged, scale: float | None, finished: Score) -> Buffer:
    """Return the scores (batch, heads, rows, columns)."""
    _, rows, heads, size = q.shape
    shape = (unify(q.shape[0], k.shape[0], "the batches"), heads, rows, k.shape[1])
    shared = _find_kv_head(heads, k.shape[2])
    products = b.reduce(
        "sum",
        shape,
        (size,),
        lambda at, p: q[at[0], at[2], at[1], p[0]] * k[at[0], at[3], shared(at[1]), p[0]],
        name="products",
    )
    factor = _factor(size, scale, products.dtype)
    return b.compute(shape, lambda *at: finished(products[at] * factor, *at), "scores")


def _find_kv_head(heads: Dim, of_keys: Dim) -> Callable[[Expr], Expr]:
    """Return the function from a head of queries to the head of keys that it reads."""
    group = dims.floordiv(heads, of_keys)
    return lambda head: head if group == 1 else head // index(group)


def _reduce_over_columns(b: RuleBuilder, reducer: str, scores: Buffer) -> Buffer:
    name = {"max": "largest", "sum": "total"}[reducer]
    return b.reduce(reducer, scores.shape[:3], scores.shape[3:], lambda at, p: scores[(*at, *p)], name=name)


def _powers(b: RuleBuilder, scores: Buffer, largest: Buffer) -> Buffer:
    return b.compute(scores.shape, lambda *at: unary("exp", scores[at] - largest[at[:3]]), "powers")


def _weight_values(b: RuleBuilder, powers: Buffer, v: Operand | _Cached | _Paged) -> Buffer:
    """Return the sums of values by their powers (batch, rows, heads, size)."""
    batch, heads, rows, columns = powers.shape
    shared = _find_kv_head(heads, v.shape[2])
    return b.reduce(
        "sum",
        (unify(batch, v.shape[0], "the batches"), rows, heads, v.shape[3]),
        (columns,),
        lambda at, p: powers[at[0], at[2], at[1], p[0]] * v[at[0], p[0], shared(at[2]), at[3]],
        name="weighted",
    )


def _factor(size: Dim, scale: float | None, dtype: str) -> Expr:
    if scale is not None:
        return const(scale, dtype)
    if isinstance(size, int):
        return const(1 / math.sqrt(size), dtype)
    return 1 / unary("sqrt", cast(DimValue(size), dtype))
