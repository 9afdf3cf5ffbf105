"""Orthogonal polynomials of a fixed degree, by their recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelyard_torch.special.evaluate import in_float64

_HIGHEST = 64  # a degree beyond it stays as it is
# The step to degree k + 1 from the arguments x, k and the polynomials of degrees k and k - 1.
Step = Callable[[torch.Tensor, int, torch.Tensor, torch.Tensor], torch.Tensor]


def _polynomial(first: Callable[[torch.Tensor], torch.Tensor], step: Step) -> Callable[..., Any]:
    """Return the function of an argument and a degree; first: the polynomial of degree 1."""

    def evaluate(x: torch.Tensor, n: float) -> Any:
        degree = int(n)
        return NotImplemented if degree > _HIGHEST else in_float64(lambda x: of_degree(x, degree))(x)

    def of_degree(x: torch.Tensor, degree: int) -> torch.Tensor:
        if degree < 1:
            return torch.zeros_like(x) if degree else torch.ones_like(x)
        last, result = torch.ones_like(x), first(x)
        for k in range(1, degree):
            last, result = result, step(x, k, result, last)
        return result

    return evaluate


def _shifted(polynomial: Callable[..., Any]) -> Callable[..., Any]:
    """Return a polynomial for [0, 1] of one for [-1, 1]."""
    return lambda x, n: polynomial(2 * x - 1, n)


def _double(x: torch.Tensor, k: int, p: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    return 2 * x * p - last


chebyshev_t = _polynomial(lambda x: x, _double)
chebyshev_u = _polynomial(lambda x: 2 * x, _double)
chebyshev_v = _polynomial(lambda x: 2 * x - 1, _double)
chebyshev_w = _polynomial(lambda x: 2 * x + 1, _double)
POLYNOMIALS = {
    "special_chebyshev_polynomial_t": chebyshev_t,
    "special_chebyshev_polynomial_u": chebyshev_u,
    "special_chebyshev_polynomial_v": chebyshev_v,
    "special_chebyshev_polynomial_w": chebyshev_w,
    "special_hermite_polynomial_h": _polynomial(lambda x: 2 * x, lambda x, k, p, last: 2 * x * p - 2 * k * last),
    "special_hermite_polynomial_he": _polynomial(lambda x: x, lambda x, k, p, last: x * p - k * last),
    "special_laguerre_polynomial_l": _polynomial(
        lambda x: 1 - x, lambda x, k, p, last: ((2 * k + 1 - x) * p - k * last) / (k + 1)
    ),
    "special_legendre_polynomial_p": _polynomial(
        lambda x: x, lambda x, k, p, last: ((2 * k + 1) * x * p - k * last) / (k + 1)
    ),
    "special_shifted_chebyshev_polynomial_t": _shifted(chebyshev_t),
    "special_shifted_chebyshev_polynomial_u": _shifted(chebyshev_u),
    "special_shifted_chebyshev_polynomial_v": _shifted(chebyshev_v),
    "special_shifted_chebyshev_polynomial_w": _shifted(chebyshev_w),
}
