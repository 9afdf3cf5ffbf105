"""Attention: long and short sequences, one query at a time, masks, shared heads of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kernel_cases.case import Case, Spec, op, sizes


def cases() -> Iterator[Case]:
    """All of this family."""
    yield _attention(1, 128, 12, 64)
    yield _attention(1, 384, 12, 64)
    yield _attention(1, 1024, 8, 64)
    yield _attention(1, 197, 6, 64)
    yield _attention(4, 77, 8, 40)
    yield _attention(1, 512, 8, 128, causal=True)
    yield _attention(1, 512, 8, 64, keys=64)
    yield _attention(1, 1, 32, 128, keys=1024)
    yield _attention(1, 1, 32, 128, keys=1024, shared=8)
    yield _attention(1, 256, 16, 64, shared=4)


def _attention(
    batch: int,
    queries: int,
    heads: int,
    size: int,
    *,
    keys: int | None = None,
    shared: int | None = None,
    causal: bool = False,
) -> Case:
    """keys: how many; shared: how many heads keys and values have."""
    columns, groups = keys or queries, shared or heads
    q, kv = Spec((batch, queries, heads, size)), Spec((batch, columns, groups, size))
    build = op("nn.attention", causal="top_left" if causal else "none")

    def run(torch: Any, *operands: Any) -> Callable[[], Any]:
        q, k, v = (each.transpose(1, 2) for each in operands)
        function, how = torch.nn.functional.scaled_dot_product_attention, {"enable_gqa": True} if shared else {}
        return lambda: function(q, k, v, is_causal=causal, **how)

    words = [sizes(q.shape), *([f"keys {columns}"] * (keys is not None)), *([f"of {shared}"] * (shared is not None))]
    flops = 4.0 * batch * heads * queries * columns * size / (2 if causal else 1)
    nbytes = 2.0 * (q.nbytes + kv.nbytes)
    return Case("attention", " ".join([*words, *(["causal"] * causal)]), build, (q, kv, kv), (), flops, nbytes, run)
