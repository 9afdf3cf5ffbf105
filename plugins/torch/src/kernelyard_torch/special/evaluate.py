"""What all families share: polynomials, their quotients, Chebyshev series, and the element types of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

import torch


def in_float64(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Let a function compute in float64, whose rounding its differences can afford, and give the type of its input."""

    @wraps(function)
    def of_any(x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return function(x.to(torch.float64)).to(dtype)

    return of_any


def polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Evaluate by Horner's rule; the coefficient of the highest power comes first."""
    result = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def quotient(x: torch.Tensor, above: Sequence[float], below: Sequence[float]) -> torch.Tensor:
    """Evaluate a rational function."""
    return polynomial(x, above) / polynomial(x, below)


def chebyshev(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Evaluate a series of Chebyshev polynomials in x / 2 by Clenshaw's rule; the highest degree comes first.

    The constant term counts half.
    """
    last, before, result = torch.zeros_like(x), torch.zeros_like(x), torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        last, before = before, result
        result = x * before - last + coefficient
    return 0.5 * (result - last)
