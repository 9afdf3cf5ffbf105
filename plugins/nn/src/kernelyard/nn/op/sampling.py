"""Choosing tokens: from probabilities and given random numbers, so that functions stay pure."""

from __future__ import annotations

import numpy as np

from kernelyard.nn.op import elementwise, reduction, shape
from kernelyard.nn.tensor import Tensor, emit

__all__ = ["multinomial_from_uniform", "renormalize_top_p_top_k_prob", "sample_top_p_top_k_from_sorted_prob"]


def multinomial_from_uniform(
    prob: Tensor, uniform_sample: Tensor, sample_indices: Tensor | None = None, dtype: str = "int64"
) -> Tensor:
    """Draw an index by each random number (n, 1) in [0, 1), as likely as its part of a row of prob (batch, tokens).

    sample_indices: the row that each number is for (n, 1); without it, the rows in order.
    """
    sums = _broadcast_to_rows(reduction.cumsum(prob, 1), sample_indices)
    return _find_first_beyond(sums, uniform_sample).astype(dtype)


def sample_top_p_top_k_from_sorted_prob(
    sorted_prob: Tensor,
    sorted_index: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    uniform_sample: Tensor,
    sample_indices: Tensor | None = None,
) -> Tensor:
    """Draw by each random number (n, 1) one of the most likely tokens (n, 1): those that reach top_p, top_k at most.

    sorted_prob, sorted_index: probabilities (batch, vocabulary), the largest first, and the tokens they are of. top_p,
    top_k: a number for each row (batch, 1). sample_indices: as for `multinomial_from_uniform`.
    """
    sums = reduction.cumsum(sorted_prob, 1)
    kept = reduction.sum(elementwise.where(_is_kept(sorted_prob, top_p, top_k), sorted_prob, 0.0), 1, keepdims=True)
    wanted = uniform_sample * _broadcast_to_rows(kept, sample_indices)
    place = _find_first_beyond(_broadcast_to_rows(sums, sample_indices), wanted)
    return emit("gather_elements", _broadcast_to_rows(sorted_index, sample_indices), place, axis=1)


def renormalize_top_p_top_k_prob(prob: Tensor, sorted_prob: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Return prob (batch, vocabulary) with all but the most likely tokens at 0, and a sum of 1 again.

    sorted_prob: its rows with the largest first. top_p, top_k: as for `sample_top_p_top_k_from_sorted_prob`.
    """
    kept = _is_kept(sorted_prob, top_p, top_k)
    least = reduction.min(elementwise.where(kept, sorted_prob, np.inf), 1, keepdims=True)
    chosen = elementwise.where(prob >= least, prob, 0.0)
    return chosen / reduction.sum(chosen, 1, keepdims=True)


def _is_kept(sorted_prob: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Mask the tokens among the first whose probabilities reach top_p, and among the first top_k; the first is kept."""
    before = reduction.cumsum(sorted_prob, 1, exclusive=True)
    place = shape.arange(sorted_prob.shape[1]).reshape(1, sorted_prob.shape[1])
    among = elementwise.logical_and(before < top_p, place < top_k.astype("int64"))
    return elementwise.logical_or(among, elementwise.equal(place, 0))


def _broadcast_to_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else shape.take(x, rows.reshape(-1), 0)


def _find_first_beyond(sums: Tensor, wanted: Tensor) -> Tensor:
    """Return the first place (n, 1) in each row at which the sums are more than what is wanted; rounding leaves the
    last.
    """
    passed = reduction.sum((sums <= wanted).astype("int64"), 1, keepdims=True)
    last = shape.arange(sums.shape[1] - 1, sums.shape[1]).reshape(1, 1)
    return elementwise.minimum(passed, last)
