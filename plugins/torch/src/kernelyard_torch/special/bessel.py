"""Bessel functions of both kinds, of orders 0 and 1.

Rational functions up to 5, and beyond it those of Hankel's asymptotic expansions. Coefficients: S. L. Moshier, the
Cephes library.
"""

from __future__ import annotations

import math

import torch

from kernelyard_torch.special.evaluate import in_float64, polynomial, quotient

_PP_0 = (
    0.0007969367292973471,
    0.08283523921074408,
    1.239533716464143,
    5.447250030587687,
    8.74716500199817,
    5.303240382353949,
    1.0,
)
_PQ_0 = (
    0.0009244088105588637,
    0.08562884743544745,
    1.2535274390105895,
    5.470977403304171,
    8.761908832370695,
    5.306052882353947,
    1.0,
)
_QP_0 = (
    -0.011366383889846916,
    -1.2825271867050931,
    -19.553954425773597,
    -93.20601521237683,
    -177.68116798048806,
    -147.07750515495118,
    -51.41053267665993,
    -6.050143506007285,
)
_QQ_0 = (
    1.0,
    64.3178256118178,
    856.4300259769806,
    3882.4018360540163,
    7240.467741956525,
    5930.727011873169,
    2062.0933166032783,
    242.0057402402914,
)
_RP_0 = (-4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0)
_RQ_0 = (
    1.0,
    499.563147152651,
    173785.4016763747,
    48440965.83399621,
    11185553704.535683,
    2112775201154.892,
    310518229857422.56,
    3.1812195594320496e16,
    1.7108629408104315e18,
)
_PP_1 = (
    0.0007621256162081731,
    0.07313970569409176,
    1.1271960812968493,
    5.112079511468076,
    8.424045901417724,
    5.214515986823615,
    1.0,
)
_PQ_1 = (
    0.0005713231280725487,
    0.06884559087544954,
    1.105142326340617,
    5.073863861286015,
    8.399855543276042,
    5.209828486823619,
    1.0,
)
_QP_1 = (
    0.05108625947501766,
    4.982138729512334,
    75.82382841325453,
    366.7796093601508,
    710.8563049989261,
    597.4896124006136,
    211.68875710057213,
    25.207020585802372,
)
_QQ_1 = (
    1.0,
    74.23732770356752,
    1056.4488603826283,
    4986.410583376536,
    9562.318924047562,
    7997.041604473507,
    2826.1927851763908,
    336.0936078106983,
)
_RP_1 = (-899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0)
_RQ_1 = (
    1.0,
    620.8364781180543,
    256987.25675774884,
    83514679.14319493,
    22151159547.97925,
    4749141220799.914,
    784369607876235.9,
    8.952223361846274e16,
    5.322786203326801e18,
)
_YP_0 = (
    15592.436785523574,
    -14663929.59039716,
    5435264770.518765,
    -982136065717.9115,
    87590639439536.7,
    -3466283033847297.0,
    4.4273326857256984e16,
    -1.8495080043698668e16,
)
_YQ_0 = (
    1.0,
    1041.2835366425984,
    626107.330137135,
    268919633.39381415,
    86400248710.3935,
    20297961275010.555,
    3171577528429750.5,
    2.5059625617265306e17,
)
_YP_1 = (
    1263204747.9017804,
    -647355876379.1603,
    114509511541823.73,
    -8127702555013251.0,
    2.024394757135949e17,
    -7.788771962659501e17,
)
_YQ_1 = (
    1.0,
    594.3015923461282,
    235564.09294306856,
    73481194.44597217,
    18760131610.870617,
    3882312774962.3857,
    620557727146953.8,
    6.871410873553005e16,
    3.9727060811656064e18,
)
# Squares of the first two zeros of J0 and of J1.
_ZEROS_0, _ZEROS_1 = (5.783185962946784, 30.471262343662087), (14.681970642123893, 49.2184563216946)
_LARGE = 5
_ASYMPTOTIC = (_PP_0, _PQ_0, _QP_0, _QQ_0), (_PP_1, _PQ_1, _QP_1, _QQ_1)


@in_float64
def j0(x: torch.Tensor) -> torch.Tensor:
    """Return the Bessel function of the first kind of order 0."""
    x = x.abs()
    return torch.where(x <= _LARGE, _j0_near_zero(x), _asymptote(x, 0, is_first_kind=True))


@in_float64
def j1(x: torch.Tensor) -> torch.Tensor:
    """Return the Bessel function of the first kind of order 1, which is odd."""
    y = x.abs()
    result = torch.where(y <= _LARGE, _j1_near_zero(y), _asymptote(y, 1, is_first_kind=True))
    return torch.where(x < 0, -result, result)


@in_float64
def y0(x: torch.Tensor) -> torch.Tensor:
    """Return the Bessel function of the second kind of order 0: NaN below 0."""
    near = quotient(x * x, _YP_0, _YQ_0) + 2 / math.pi * x.log() * _j0_near_zero(x)
    near = torch.where(x == 0, -math.inf, near)
    return torch.where(x > _LARGE, _asymptote(x, 0, is_first_kind=False), near)


@in_float64
def y1(x: torch.Tensor) -> torch.Tensor:
    """Return the Bessel function of the second kind of order 1: NaN below 0."""
    near = x * quotient(x * x, _YP_1, _YQ_1) + 2 / math.pi * (_j1_near_zero(x) * x.log() - x.reciprocal())
    near = torch.where(x == 0, -math.inf, near)
    return torch.where(x > _LARGE, _asymptote(x, 1, is_first_kind=False), near)


@in_float64
def spherical_j0(x: torch.Tensor) -> torch.Tensor:
    """Return sin(x) / x, near 0 by its series."""
    square = x * x
    series = polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(8))])
    return torch.where(x.abs() < 0.5, series, torch.where(x.isinf(), 0.0, x.sin() / x))


def _j0_near_zero(x: torch.Tensor) -> torch.Tensor:
    square = x * x
    first, second = _ZEROS_0
    return (square - first) * (square - second) * quotient(square, _RP_0, _RQ_0)


def _j1_near_zero(x: torch.Tensor) -> torch.Tensor:
    square = x * x
    first, second = _ZEROS_1
    return x * (square - first) * (square - second) * quotient(square, _RP_1, _RQ_1)


def _asymptote(x: torch.Tensor, order: int, is_first_kind: bool) -> torch.Tensor:
    """Return Hankel's expansion: a wave of falling size, whose phase and size are rational functions of 1 / x**2."""
    w = 5 / x
    pp, pq, qp, qq = _ASYMPTOTIC[order]
    p, q = quotient(w * w, pp, pq), w * quotient(w * w, qp, qq)
    phase = x - (order * 0.5 + 0.25) * math.pi
    wave = p * phase.cos() - q * phase.sin() if is_first_kind else p * phase.sin() + q * phase.cos()
    return wave * math.sqrt(2 / math.pi) / x.sqrt()
