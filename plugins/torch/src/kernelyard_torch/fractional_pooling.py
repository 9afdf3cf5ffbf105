"""Decompose fractional max pooling: windows of one size, whose starts random numbers decide (Graham 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch


def fractional_max_pool_2d(
    x: torch.Tensor, kernel: Sequence[int], out: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pool images (N, C, H, W) or (C, H, W); samples (N, C, 2) are of the width and of the height."""
    return _pool(x, kernel, out, samples.flip(-1))


def fractional_max_pool_3d(
    x: torch.Tensor, kernel: Sequence[int], out: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pool volumes; samples (N, C, 3) are of the axes in their order."""
    return _pool(x, kernel, out, samples)


def _pool(
    x: torch.Tensor, kernel: Sequence[int], out: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest of each window, and its index within its plane."""
    rank = len(kernel)
    batched = x if x.dim() == rank + 2 else x.unsqueeze(0)
    batch, channels, *sizes = batched.shape
    places = torch.zeros((), dtype=torch.int64)
    for axis, (size, pool, count) in enumerate(zip(sizes, kernel, out, strict=True)):
        starts = _starts(samples[:, :, axis], size, pool, count)
        covered = starts.unsqueeze(-1) + torch.arange(pool)
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = count, pool
        places = places * size + covered.reshape(batch, channels, *shape)
    windows = places.reshape(batch, channels, -1)
    taken = batched.flatten(2).gather(2, windows).reshape(batch, channels, *out, prod(kernel))
    largest, at = taken.max(-1)
    index = windows.reshape(taken.shape).gather(-1, at.unsqueeze(-1)).squeeze(-1)
    return (largest, index) if batched is x else (largest.squeeze(0), index.squeeze(0))


def _starts(samples: torch.Tensor, size: int, pool: int, count: int) -> torch.Tensor:
    """(N, C, count): where each window begins along one axis; the last one ends with it."""
    last = torch.full((*samples.shape, 1), size - pool, dtype=torch.int64)
    if count == 1:
        return last
    step = torch.full((), size - pool, dtype=samples.dtype) / (count - 1)
    offset = samples.unsqueeze(-1)
    steps = ((torch.arange(count - 1) + offset) * step).to(torch.int64) - (offset * step).to(torch.int64)
    return torch.cat([steps, last], -1)
