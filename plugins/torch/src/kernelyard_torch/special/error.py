"""The error function's relatives: its complement, their inverses, and those of the normal distribution.

Coefficients: W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969); of `ndtri`:
S. L. Moshier, the Cephes library; of the first guess of `erfinv`: G. L. Pavlis, as PyTorch has them.
"""

from __future__ import annotations

import math

import torch

from kernelyard_torch.special.evaluate import in_float64, quotient

_SMALL, _LARGE = 0.46875, 4.0  # Cody's three ranges
_SMALL_ABOVE = (
    1.85777706184603153e-1,
    3.16112374387056560e0,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_SMALL_BELOW = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MIDDLE_ABOVE = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e0,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_MIDDLE_BELOW = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)
_LARGE_ABOVE = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_LARGE_BELOW = (
    1.0,
    2.56852019228982242e0,
    1.87295284992346725e0,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)
# The first guess of the inverse, in the middle and in the tails.
_CENTRAL_RANGE = 0.7
_GUESS_ABOVE = (-0.140543331, 0.914624893, -1.645349621, 0.886226899)
_GUESS_BELOW = (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0)
_TAIL_ABOVE, _TAIL_BELOW = (1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.6370678, 3.5438892, 1.0)
# Quantiles of the normal distribution: near 1/2, and in 1 / sqrt(-2 log y) for y above exp(-32) and below it.
_P0 = (-59.96335010141079, 98.00107541859997, -56.67628574690703, 13.931260938727968, -1.2391658386738125)
_Q0 = (
    1.0,
    1.9544885833814176,
    4.676279128988815,
    86.36024213908905,
    -225.46268785411937,
    200.26021238006066,
    -82.03722561683334,
    15.90562251262117,
    -1.1833162112133,
)
_P1 = (
    4.0554489230596245,
    31.525109459989388,
    57.16281922464213,
    44.08050738932008,
    14.684956192885803,
    2.1866330685079025,
    -0.1402560791713545,
    -0.03504246268278482,
    -0.0008574567851546854,
)
_Q1 = (
    1.0,
    15.779988325646675,
    45.39076351288792,
    41.3172038254672,
    15.04253856929075,
    2.504649462083094,
    -0.14218292285478779,
    -0.03808064076915783,
    -0.0009332594808954574,
)
_P2 = (
    3.2377489177694603,
    6.915228890689842,
    3.9388102529247444,
    1.3330346081580755,
    0.20148538954917908,
    0.012371663481782003,
    0.00030158155350823543,
    2.6580697468673755e-06,
    6.239745391849833e-09,
)
_Q2 = (
    1.0,
    6.02427039364742,
    3.6798356385616087,
    1.3770209948908132,
    0.21623699359449663,
    0.013420400608854318,
    0.00032801446468212774,
    2.8924786474538068e-06,
    6.790194080099813e-09,
)


@in_float64
def erfc(x: torch.Tensor) -> torch.Tensor:
    """Return the complementary error function, exact to a few units in the last place where it is small, too."""
    y = x.abs()
    result = torch.where(y <= _SMALL, 1 - _erf_near_zero(y), _exp_minus_square(y) * _scaled_tail(y))
    return torch.where(x < 0, 2 - result, result)


@in_float64
def erfcx(x: torch.Tensor) -> torch.Tensor:
    """Return exp(x * x) erfc(x), which does not vanish for large x."""
    y = x.abs()
    result = torch.where(y <= _SMALL, (y * y).exp() * (1 - _erf_near_zero(y)), _scaled_tail(y))
    return torch.where(x < 0, 2 / _exp_minus_square(y) - result, result)


@in_float64
def log_ndtr(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the normal distribution's cumulative function."""
    t = x * math.sqrt(0.5)
    return torch.where(x < -1, (erfcx(-t) / 2).log() - t * t, (-erfc(t) / 2).log1p())


@in_float64
def erfinv(y: torch.Tensor) -> torch.Tensor:
    """Return the inverse of the error function: a rational guess, and two steps of Newton's method."""
    size = y.abs()
    tail = (-((1 - size) / 2).log()).sqrt()
    guess = quotient(tail, _TAIL_ABOVE, _TAIL_BELOW)
    x = torch.where(size <= _CENTRAL_RANGE, size * quotient(size * size, _GUESS_ABOVE, _GUESS_BELOW), guess)
    for _ in range(2):
        # Of larger ones the complements are subtracted, which cancel less.
        error = torch.where(size <= 0.5, _erf(x) - size, (1 - size) - erfc(x))
        x = x - error / (2 / math.sqrt(math.pi) * _exp_minus_square(x))
    x = torch.where(size == 1, math.inf, torch.where(size > 1, math.nan, x))
    return torch.where(y < 0, -x, x)


@in_float64
def ndtri(p: torch.Tensor) -> torch.Tensor:
    """Return the quantile of the normal distribution, the inverse of its cumulative function."""
    is_upper = p > 1 - math.exp(-2)
    y = torch.where(is_upper, 1 - p, p)
    half = y - 0.5
    square = half * half
    near = (half + half * square * quotient(square, _P0, _Q0)) * math.sqrt(2 * math.pi)
    x = (-2 * y.log()).sqrt()
    z = x.reciprocal()
    tail = x - x.log() / x - z * torch.where(x < 8, quotient(z, _P1, _Q1), quotient(z, _P2, _Q2))
    result = torch.where(y > math.exp(-2), near, torch.where(is_upper, tail, -tail))
    result = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, result))
    return torch.where((p < 0) | (p > 1), math.nan, result)


def _erf(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y <= _SMALL, _erf_near_zero(y), 1 - erfc(y))


def _erf_near_zero(y: torch.Tensor) -> torch.Tensor:
    return y * quotient(y * y, _SMALL_ABOVE, _SMALL_BELOW)


def _scaled_tail(y: torch.Tensor) -> torch.Tensor:
    """Return exp(y * y) erfc(y) above the first of the ranges."""
    z = (y * y).reciprocal()
    large = (1 / math.sqrt(math.pi) - z * quotient(z, _LARGE_ABOVE, _LARGE_BELOW)) / y
    return torch.where(y <= _LARGE, quotient(y, _MIDDLE_ABOVE, _MIDDLE_BELOW), large)


def _exp_minus_square(y: torch.Tensor) -> torch.Tensor:
    """Return exp(-y * y) of a square whose rounding the exponential does not enlarge: the leading bits are exact."""
    y = y.clamp(max=30)  # beyond which it is 0
    near = (y * 16).floor() / 16
    return (-near * near).exp() * (-(y - near) * (y + near)).exp()
