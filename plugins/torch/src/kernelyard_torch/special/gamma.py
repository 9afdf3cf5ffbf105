"""The gamma function and its derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernelyard_torch.special.evaluate import in_float64, polynomial

# Stirling's series of log(gamma(z)), in 1/z: B(2k) / (2k (2k - 1)) for k = 1, 2, ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_LEAST = 8  # from where on these terms give 14 digits
# Digamma's, B(2k) / 2k, and trigamma's, B(2k), highest first.
_BERNOULLI = (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)
_DIGAMMA = tuple(number / (2 * (7 - index)) for index, number in enumerate(_BERNOULLI))
_LEAST_OF_DERIVATIVES = 10  # from where on these give as many digits


@in_float64
def log_gamma(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the gamma function's absolute value.

    Below 8 by the recurrence gamma(z) = gamma(z + 8) / (z (z + 1) ... (z + 7)), below 1/2 by the reflection formula.
    """
    is_reflected = x < 0.5
    z = torch.where(is_reflected, 1 - x, x)
    is_small = z < _LEAST
    steps = torch.where(is_small, z, 1.0)
    product = steps
    for step in range(1, _LEAST):
        product = product * (steps + step)
    result = _stirling(torch.where(is_small, z + _LEAST, z)) - torch.where(is_small, product, 1.0).log()
    sine = (math.pi * (x - x.floor())).sin()
    result = torch.where(is_reflected, math.log(math.pi) - sine.log() - result, result)
    return torch.where(x.isinf(), math.inf, result)


def _stirling(z: torch.Tensor) -> torch.Tensor:
    inverse = z.reciprocal()
    series = inverse * polynomial(inverse * inverse, _STIRLING[::-1])
    return (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + series


@in_float64
def digamma(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithmic derivative of the gamma function.

    By its recurrence and its asymptotic series, below 0 by the reflection formula: NaN at negative integers.
    """
    z, terms = _recur(torch.where(x < 0, 1 - x, x), 1)
    inverse = z.reciprocal()
    square = inverse * inverse
    result = z.log() - 0.5 * inverse - square * polynomial(square, _DIGAMMA) - terms
    reflected = result - math.pi / (math.pi * (x - x.trunc())).tan()
    reflected = torch.where(x == x.trunc(), math.nan, reflected)
    pole = torch.where(x.reciprocal() > 0, -math.inf, math.inf)
    return torch.where(x == 0, pole, torch.where(x < 0, reflected, result))


@in_float64
def trigamma(x: torch.Tensor) -> torch.Tensor:
    """Return the derivative of digamma, likewise; below 1/2 by the reflection formula."""
    is_reflected = x < 0.5
    z, terms = _recur(torch.where(is_reflected, 1 - x, x), 2)
    inverse = z.reciprocal()
    square = inverse * inverse
    result = terms + inverse + 0.5 * square + inverse * square * polynomial(square, _BERNOULLI)
    sine = (math.pi * (x - x.floor())).sin()
    return torch.where(is_reflected, math.pi**2 / (sine * sine) - result, result)


def _recur(z: torch.Tensor, power: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arguments from where on the series hold, and the sum of 1 / z**power on the way there."""
    terms = torch.zeros_like(z)
    for _ in range(_LEAST_OF_DERIVATIVES):
        is_small = z < _LEAST_OF_DERIVATIVES
        terms = terms + torch.where(is_small, z**power, math.inf).reciprocal()
        z = torch.where(is_small, z + 1, z)
    return z, terms


def polygamma(n: int, x: torch.Tensor) -> Any:
    """Return a derivative of digamma; further ones than the first stay as they are."""
    return NotImplemented if n > 1 else (trigamma if n else digamma)(x)
