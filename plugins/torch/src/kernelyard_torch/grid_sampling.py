"""Decompose grid sampling into one gather of all taps, their weights, and a sum."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._decomp.decompositions import pw_cast_for_opmath

# PyTorch's codes.
NEAREST, CUBIC = 1, 2
ZEROS, REFLECTION = 0, 2
KEYS = -0.75  # the parameter of the cubic kernel of Keys (1981)


def grid_sampler_2d(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Sample images: with a cubic kernel as below, else as PyTorch decomposes it."""
    if mode != CUBIC:
        decomposed = decomposition_table[torch.ops.aten.grid_sampler_2d.default]
        return decomposed(x, grid, mode, padding, align_corners)
    return grid_sampler(x, grid, mode, padding, align_corners)


@pw_cast_for_opmath
def grid_sampler(x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Sample x (N, C, sizes...) at grid (N, out..., axes), whose positions are from -1 to 1, the last axis first."""
    batch, channels, *sizes = x.shape
    places: Any = None
    weights: Any = None
    inside: Any = None
    for axis, size in enumerate(sizes):
        unit = grid[..., len(sizes) - 1 - axis].reshape(batch, -1)
        taps, weight = _taps(_position(unit, size, align_corners), size, mode, padding, align_corners)
        is_inside = (taps >= 0) & (taps < size)
        steps = torch.where(is_inside, taps, 0).to(torch.int64)  # what is NaN, too, stays within the data
        places = steps if places is None else (places.unsqueeze(-1) * size + steps.unsqueeze(-2)).flatten(2)
        weights = weight if weights is None else (weights.unsqueeze(-1) * weight.unsqueeze(-2)).flatten(2)
        inside = is_inside if inside is None else (inside.unsqueeze(-1) & is_inside.unsqueeze(-2)).flatten(2)
    index = places.reshape(batch, 1, -1).expand(batch, channels, -1)
    taken = x.flatten(2).gather(2, index).reshape(batch, channels, *places.shape[1:])
    shown = torch.where(inside.unsqueeze(1), taken, 0)
    return (shown * weights.unsqueeze(1)).sum(-1).reshape(batch, channels, *grid.shape[1:-1])


def _position(unit: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Return positions from -1 to 1 in elements."""
    middle = size * 0.5 - 0.5
    return unit * (middle if align_corners else size * 0.5) + middle


def _taps(
    position: torch.Tensor, size: int, mode: int, padding: int, align_corners: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements around each position (N, count, taps), as real numbers, and their weights."""
    if mode == CUBIC:  # the taps are moved inside, else the positions
        first = position.floor()
        t = position - first
        weights = torch.stack([_far(t + 1), _near(t), _near(1 - t), _far(2 - t)], -1)
        return _move_inside(first.unsqueeze(-1) + torch.arange(-1, 3), size, padding, align_corners), weights
    position = _move_inside(position, size, padding, align_corners)
    if mode == NEAREST:
        taps = position.round().unsqueeze(-1)
        return taps, torch.ones_like(taps)
    first = position.floor()
    t = position - first
    return torch.stack([first, first + 1], -1), torch.stack([1 - t, t], -1)


def _near(distance: torch.Tensor) -> torch.Tensor:
    return ((KEYS + 2) * distance - (KEYS + 3)) * distance * distance + 1


def _far(distance: torch.Tensor) -> torch.Tensor:
    return ((KEYS * distance - 5 * KEYS) * distance + 8 * KEYS) * distance - 4 * KEYS


def _move_inside(position: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Move positions into the data: to the nearest edge, or mirrored at the edges; zeros lie outside."""
    if padding == ZEROS:
        return position
    if padding == REFLECTION:
        low = 0.0 if align_corners else -0.5
        span = size - 1 - 2 * low
        distance = (position - low).abs()
        beyond = distance % (2 * span) if span > 0 else torch.zeros_like(distance)  # one element, corners aligned
        position = span - (beyond - span).abs() + low
    return position.clamp(0, size - 1)
