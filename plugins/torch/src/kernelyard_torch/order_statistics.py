"""Decompose medians, modes, counts, runs, searches and running extrema into operators that have converters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_MOST_STEPS = 32  # of a search in a sequence of unknown length, and of a scan along one


def kth_value(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the last of the k smallest along an axis, and where it is."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    last = [each.narrow(dim, k - 1, 1) for each in torch.topk(x, k, dim, largest=False)]
    return tuple(last if keepdim else [each.squeeze(dim) for each in last])


def median(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the lower median along an axis, and where it is; NaN where there is one, and its first place."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    value, place = _select_rank(x, dim, (x.shape[dim] - 1) // 2)
    if x.is_floating_point():
        missing = x.isnan()
        any_missing = missing.any(dim, keepdim=True)
        value = torch.where(any_missing, torch.nan, value)
        place = torch.where(any_missing, missing.to(torch.uint8).argmax(dim, keepdim=True), place)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def nan_median(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the lower median of what is no NaN along an axis, and where it is."""
    if x.dim() == 0 or not x.is_floating_point():
        return median(x, dim, keepdim)
    count = x.isnan().logical_not().sum(dim, keepdim=True)  # NaNs come last in order
    value, place = _select_rank(x, dim, ((count - 1) // 2).clamp(min=0))
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def of_all(function: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the form of a median that takes all elements."""
    return lambda x: function(x.reshape(-1), 0)[0]


def _select_rank(x: torch.Tensor, dim: int, rank: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements of some rank along an axis, and where they are."""
    values, places = torch.sort(x, dim=dim, stable=True)
    if isinstance(rank, torch.Tensor):
        return values.gather(dim, rank), places.gather(dim, rank)
    return values.narrow(dim, rank, 1), places.narrow(dim, rank, 1)


def search_sorted(
    sequence: torch.Tensor,
    values: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return where values belong in a sequence, by a binary search of all at once: a gather for each step."""
    sequence = sequence if sorter is None else sequence.gather(-1, sorter)
    length = sequence.shape[-1]
    low = torch.zeros_like(values, dtype=torch.int64)
    high = low + length
    for _ in range(length.bit_length() if isinstance(length, int) else _MOST_STEPS):
        middle = (low + high) // 2
        place = middle.clamp(max=length - 1)
        found = sequence[place] if sequence.dim() == 1 else sequence.gather(-1, place)
        is_behind = found > values if right or side == "right" else found >= values
        is_open = low < high
        low = torch.where(is_open & ~is_behind, middle + 1, low)
        high = torch.where(is_open & is_behind, middle, high)
    return low.to(torch.int32) if out_int32 else low


def histogram(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:  # noqa: A002
    """Count the elements in equal parts of a range; where it is empty, in that of the elements."""
    x = x.reshape(-1)
    low, high = torch.full((), min, dtype=x.dtype), torch.full((), max, dtype=x.dtype)
    if min == max and x.shape[0] != 0:
        low, high = x.amin(), x.amax()
    is_point = low == high
    low, high = torch.where(is_point, low - 1, low), torch.where(is_point, high + 1, high)
    places = ((x - low) / (high - low) * bins).floor().clamp(0, bins - 1).to(torch.int64)
    counts = torch.zeros(bins, dtype=x.dtype)
    return counts.scatter_add(0, places, ((x >= low) & (x <= high)).to(x.dtype))


def running_extremum(is_before: Callable[[Any, Any], Any]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return `cummax` or `cummin`: the last extremum of each beginning along an axis, and where it is.

    is_before: whether an earlier element is kept beside a later one. In each step twice as many elements are seen.
    """

    def run(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dim() == 0:
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        value, here = x, _positions(x, dim)
        place = here
        for shift in _shifts(x.shape[dim]):
            earlier = (here - shift).clamp(min=0)
            other, other_place = value.gather(dim, earlier), place.gather(dim, earlier)
            kept = is_before(other, value)
            if x.is_floating_point():
                kept = other.isnan() & ~value.isnan() | kept & ~value.isnan()
            value, place = torch.where(kept, other, value), torch.where(kept, other_place, place)
        return value, place

    return run


def running_log_sum_exp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the logarithm of running sums of exponentials, by pairwise sums: none overflows."""
    if x.dim() == 0:
        return x.clone()
    value, here = x, _positions(x, dim)
    for shift in _shifts(x.shape[dim]):
        both = torch.logaddexp(value.gather(dim, (here - shift).clamp(min=0)), value)
        value = torch.where(here >= shift, both, value)
    return value


def count_values(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Count how often each number from 0 to the largest occurs (`bincount`), or sum the weights of its places."""
    size = _as_size(torch.cat([x.to(torch.int64), torch.full((1,), minlength - 1)]).amax() + 1)
    if weights is None:
        counted = torch.ones_like(x, dtype=torch.int64)
    else:
        counted = weights if weights.dtype == torch.float32 else weights.to(torch.float64)
    return torch.zeros(size, dtype=counted.dtype).scatter_add(0, x.to(torch.int64), counted)


def most_frequent(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the least of the most frequent values along an axis (`mode`), and its last place."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, places = torch.sort(x, dim=dim, stable=True)
    here = _positions(x, dim)
    is_first = values.ne(values.roll(1, dim)) | here.eq(0)
    start = torch.where(is_first, here, 0).cummax(dim).values
    last = (here - start).argmax(dim, keepdim=True)
    found = values.gather(dim, last), places.gather(dim, last)
    return found if keepdim else tuple(each.squeeze(dim) for each in found)


def repeat_indices(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Repeat each index as often as it says (`repeat_interleave`): how many have ended at each index of the result."""
    ends = repeats.cumsum(0)
    size = _as_size(repeats.sum()) if output_size is None else output_size
    ended = torch.zeros(size + 1, dtype=torch.int64).scatter_add(0, ends, torch.ones_like(ends))
    return ended.cumsum(0)[:size].to(repeats.dtype)


def consecutive_runs(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the first of each run of equal elements or slices (`unique_consecutive`), the run of each, their lengths.

    What is not asked for is empty.
    """
    rows = x.reshape(-1) if dim is None else x.movedim(dim, 0)
    differs = rows[1:].ne(rows[:-1])
    differs = differs.flatten(1).any(1) if rows.dim() > 1 else differs
    is_first = torch.cat([torch.ones_like(torch.arange(rows.shape[0])[:1], dtype=torch.bool), differs])
    first = is_first.nonzero()[:, 0]
    inverse = is_first.cumsum(0) - 1
    counts = torch.cat([first, torch.full((1,), rows.shape[0])]).diff()
    nothing = torch.zeros(0, dtype=torch.int64)
    return (
        rows[first] if dim is None else rows[first].movedim(0, dim),
        (inverse.reshape(x.shape) if dim is None else inverse) if return_inverse else nothing,
        counts if return_counts else nothing,
    )


def _as_size(count: torch.Tensor) -> Any:
    """Return a number of elements that data decides."""
    size = count.item()
    torch._check(size >= 0)
    return size


def _positions(x: torch.Tensor, dim: int) -> torch.Tensor:
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    return torch.arange(x.shape[dim]).reshape(shape).expand(x.shape)


def _shifts(length: Any) -> list[int]:
    """Return the powers of two that are less than a length."""
    return [1 << step for step in range((length - 1).bit_length() if isinstance(length, int) else _MOST_STEPS)]
