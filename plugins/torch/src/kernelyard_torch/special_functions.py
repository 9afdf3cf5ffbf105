"""Decompose special functions into operators that have converters."""

from __future__ import annotations

import math

import torch

# Stirling's series of log(gamma(z)), in 1/z: B(2k) / (2k (2k - 1)) for k = 1, 2, ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_LEAST = 8  # from where on these terms give 14 digits


def log_gamma(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the gamma function's absolute value, computed in float64.

    Below 8 by the recurrence gamma(z) = gamma(z + 8) / (z (z + 1) ... (z + 7)), below 1/2 by the reflection formula.
    """
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    wide = x.to(torch.float64)
    is_reflected = wide < 0.5
    z = torch.where(is_reflected, 1 - wide, wide)
    is_small = z < _LEAST
    steps = torch.where(is_small, z, 1.0)
    product = steps
    for step in range(1, _LEAST):
        product = product * (steps + step)
    result = _stirling(torch.where(is_small, z + _LEAST, z)) - torch.where(is_small, product, 1.0).log()
    sine = (math.pi * (wide - wide.floor())).sin()
    result = torch.where(is_reflected, math.log(math.pi) - sine.log() - result, result)
    return torch.where(wide.isinf(), math.inf, result).to(dtype)


def _stirling(z: torch.Tensor) -> torch.Tensor:
    inverse = z.reciprocal()
    square, series = inverse * inverse, torch.zeros_like(z)
    for term in reversed(_STIRLING):
        series = series * square + term
    return (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + series * inverse
