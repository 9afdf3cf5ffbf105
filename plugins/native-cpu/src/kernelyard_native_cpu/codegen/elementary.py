"""Exponentials, logarithms and their kin as straight-line code on floats, doubles and vectors of them.

Polynomials are our own fits, near the minimax error on the stated interval. Stated errors (in units of the last place
of the result's type) hold for all finite arguments and are tested in tests/test_math.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Operand, Value, literal

LOG2_E = 1 / math.log(2)
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440054690583e-4  # their sum is ln 2; the first has few bits
LN2_HIGH_DOUBLE, LN2_LOW_DOUBLE = 0.6931471803691238, 1.9082149292705877e-10
# Added to a small float, the first rounds it: the last bits of the sum are the whole number and twice the bias of an
# exponent, which halves of them have once.
BIAS, FRACTION_BITS = 127, 23
ROUNDING = 1.5 * 2**FRACTION_BITS + 2 * BIAS

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2
EXP_FLOAT = (
    0.5000000083022622,
    0.1666666685579726,
    0.0416662531524757,
    0.00833326515316676,
    0.0013947256721391407,
    0.00019918089984741097,
)
EXP_DOUBLE = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326044,
    0.0013888888888882033,
    0.00019841269875166774,
    2.4801587329071976e-05,
    2.7557254944272753e-06,
    2.7557270458458655e-07,
    2.5105410905322076e-08,
    2.0915740636447426e-09,
)
# (log(1 + f) - f + f**2 / 2) / f**3 on sqrt(1/2) - 1 <= f <= sqrt(2) - 1
LOG_FLOAT = (
    0.3333331260117879,
    -0.250000096090093,
    0.20002118826588555,
    -0.16667995432814148,
    0.14219549047433608,
    -0.12405594533320229,
    0.11888190300775765,
    -0.11675628256157337,
    0.06746551844989616,
)
# (log((1 + s) / (1 - s)) - 2 s) / s**3 in s**2, |s| <= 0.172
LOG_DOUBLE = (
    0.6666666666666666,
    0.40000000000000907,
    0.2857142857078642,
    0.22222222395595695,
    0.18181795226622974,
    0.15386262098305115,
    0.13268176441563156,
    0.13092831839420038,
)
# erf(x) / x - 1 in x**2 on [0, 0.8], log2(erfc(x)) on [0.8, 3.95], and (2**f - 1) / f on |f| <= 0.5
ERF_SPLIT, ERF_LAST = 0.8, 3.95
ERF_NEAR = (
    0.12837916257157828,
    -0.37612591355800856,
    0.11282972954350708,
    -0.02681408661661706,
    0.005072111133178966,
    -0.0006447827335874768,
)
ERF_FAR = (
    -5.9602818195614304e-05,
    -1.6278529755130382,
    -0.9175728049940232,
    -0.15148182362987947,
    0.03283742584090759,
    -0.004590711240949825,
    0.00030377724988949015,
)
EXP2_FLOAT = (
    0.6931469775984361,
    0.24022242084173212,
    0.055507337437772974,
    0.009671512718372632,
    0.0013264727277568777,
)
Emit = Callable[[FunctionEmitter, Value], Value]


def polynomial(e: FunctionEmitter, x: Value, coefficients: Sequence[float]) -> Value:
    """Emit Horner's scheme; the constant coefficient comes first."""
    result = literal(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = e.fma(result, x, coefficient)
    return result


def clamp(e: FunctionEmitter, x: Value, low: float, high: float) -> Value:
    """Clamp `x` to [low, high]; NaN stays NaN."""
    x = e.select(e.compare("olt", x, low), low, x)
    return e.select(e.compare("ogt", x, high), high, x)


class Whole(NamedTuple):
    """A whole number n as a float; bits: an integer whose last nine are n and twice the bias, where there is one."""

    value: Value
    bits: Value | None = None


def _round_product(e: FunctionEmitter, x: Value, factor: float) -> Whole:
    """Round a product to a whole number: where no instruction scales by powers of two, so that its bits are known."""
    if x.type == "double" or e.has_scale:
        return Whole(e.intrinsic("rint", e.mul(x, factor)))
    rounded = e.fma(x, factor, ROUNDING)
    return Whole(e.sub(rounded, ROUNDING), e.convert("bitcast", rounded, "i32"))


def _to_integer(e: FunctionEmitter, n: Value) -> Value:
    """Return a float without a fraction as an integer; NaN gives 0."""
    sane = e.select(e.compare("uno", n, n), 0.0, n)
    return e.convert("fptosi", sane, "i64" if n.type == "double" else "i32")


def _power_of_two(e: FunctionEmitter, n: Value, float_type: str) -> Value:
    """2 ** n for integers in the exponent range of normal numbers."""
    bias, shift = (BIAS, FRACTION_BITS) if float_type == "float" else (1023, 52)
    return e.convert("bitcast", e.binary("shl", e.add(n, bias), shift), float_type)


def _from_exponent(e: FunctionEmitter, bits: Value) -> Value:
    """Return the float whose biased exponent is in the last bits of an integer."""
    return e.convert("bitcast", e.binary("shl", bits, FRACTION_BITS), "float")


def _scale(e: FunctionEmitter, x: Value, n: Whole) -> Value:
    """x * 2 ** n for whole n with a normal result; NaN stays where x is NaN."""
    if n.bits is not None:
        return e.mul(x, _from_exponent(e, e.sub(n.bits, BIAS)))
    scaled = e.scale(x, n.value)
    return e.mul(x, _power_of_two(e, _to_integer(e, n.value), x.type)) if scaled is None else scaled


def _scale_far(e: FunctionEmitter, x: Value, n: Whole) -> Value:
    """x * 2 ** n for whole n; overflows to infinity, underflows gradually."""
    # Two factors, so that neither leaves the normal range where the result overflows or is denormal.
    if n.bits is not None:
        half = e.binary("ashr", n.bits, 1)
        return e.mul(e.mul(x, _from_exponent(e, half)), _from_exponent(e, e.sub(n.bits, half)))
    scaled = e.scale(x, n.value)
    if scaled is not None:
        return scaled
    whole = _to_integer(e, n.value)
    half = e.binary("ashr", whole, 1)
    rest = e.sub(whole, half)
    return e.mul(e.mul(x, _power_of_two(e, half, x.type)), _power_of_two(e, rest, x.type))


def _reduce_exp(e: FunctionEmitter, x: Value) -> tuple[Whole, Value, Value]:
    """Whole n, and r and q with exp(x) = 2**n * (1 + r + r * r * q)."""
    double = x.type == "double"
    n = _round_product(e, x, LOG2_E)
    high, low = (LN2_HIGH_DOUBLE, LN2_LOW_DOUBLE) if double else (LN2_HIGH, LN2_LOW)
    r = e.fma(n.value, -high, x)
    r = e.fma(n.value, -low, r)
    return n, r, polynomial(e, r, EXP_DOUBLE if double else EXP_FLOAT)


def exp(e: FunctionEmitter, x: Value) -> Value:
    """Emit e ** x. Error below 1.1 ulp; overflows to infinity, underflows gradually."""
    low, high = (-746.0, 710.0) if x.type == "double" else (-104.5, 89.0)
    n, r, q = _reduce_exp(e, clamp(e, x, low, high))
    return _scale_far(e, e.add(e.fma(e.mul(r, r), q, r), 1.0), n)


def _exp_minus_one(e: FunctionEmitter, x: Value) -> Value:
    """exp(x) - 1, for arguments whose exponential neither overflows nor is denormal."""
    n, r, q = _reduce_exp(e, x)
    p = e.fma(e.mul(r, r), q, r)
    scale = _scale(e, e.broadcast(literal(1.0, x.type), x.lanes), n)
    return e.fma(scale, p, e.sub(scale, 1.0))


def expm1(e: FunctionEmitter, x: Value) -> Value:
    """Emit exp(x) - 1. Error below 2 ulp."""
    if x.type == "double":
        return e.library_call("expm1", x)
    bounded = clamp(e, x, -30.0, 88.0)
    result = e.select(e.compare("ogt", x, 88.0), exp(e, x), _exp_minus_one(e, bounded))
    return copy_sign(e, result, x)  # that of zero, too


def log(e: FunctionEmitter, x: Value) -> Value:
    """Emit the natural logarithm. Error below 1.5 ulp; -infinity at 0, NaN below."""
    return _log_of_sum(e, x, 0.0)


def _log_of_sum(e: FunctionEmitter, x: Value, correction: Operand) -> Value:
    """Emit log(x) plus a correction that is small beside it, as where x is rounded; double takes none."""
    double = x.type == "double"
    integer, shift, tiny, scale = (
        ("i64", 52, 2.2250738585072014e-308, 54) if double else ("i32", 23, 1.1754943508222875e-38, 25)
    )
    small = e.compare("olt", x, tiny)
    scaled = e.select(small, e.mul(x, 2.0**scale), x)
    bits = e.convert("bitcast", scaled, integer)
    # Subtracting sqrt(1/2)'s bits puts the mantissa into [sqrt(1/2), sqrt(2)) when they are added again.
    root = 0x3FE6A09E667F3BCD if double else 0x3F3504F3
    offset = e.sub(bits, root)
    exponent = e.binary("ashr", offset, shift)
    mantissa_bits = e.sub(bits, e.binary("shl", exponent, shift))
    f = e.sub(e.convert("bitcast", mantissa_bits, x.type), 1.0)
    n = e.convert("sitofp", exponent, x.type)
    n = e.sub(n, e.select(small, literal(scale, x.type), 0.0))
    result = _log_mantissa_double(e, f, n) if double else _log_mantissa_float(e, f, n, correction)
    result = e.select(e.compare("olt", x, math.inf), result, x)  # infinity and NaN stay
    result = e.select(e.compare("oeq", x, 0.0), -math.inf, result)
    return e.select(e.compare("olt", x, 0.0), math.nan, result)


def _log_mantissa_float(e: FunctionEmitter, f: Value, n: Value, correction: Operand) -> Value:
    square = e.mul(f, f)
    tail = e.mul(e.mul(square, f), polynomial(e, f, LOG_FLOAT))
    tail = e.fma(n, LN2_LOW, e.add(tail, correction))
    tail = e.fma(square, -0.5, tail)
    return e.fma(n, LN2_HIGH, e.add(f, tail))


def _log_mantissa_double(e: FunctionEmitter, f: Value, n: Value) -> Value:
    s = e.div(f, e.add(f, 2.0))
    z = e.mul(s, s)
    r = e.mul(z, polynomial(e, z, LOG_DOUBLE))
    # log(1 + f) = f - h + s * (h + r), with h = f**2 / 2: small terms first.
    h = e.mul(0.5, e.mul(f, f))
    small = e.fma(s, e.add(h, r), e.mul(n, LN2_LOW_DOUBLE))
    return e.fma(n, LN2_HIGH_DOUBLE, e.sub(f, e.sub(h, small)))


def log1p(e: FunctionEmitter, x: Value) -> Value:
    """Emit log(1 + x). Error below 1 ulp for float.

    What the sum loses by rounding is added to its logarithm, divided by the sum. Source: the log1pf of musl.
    """
    if x.type == "double":
        return e.library_call("log1p", x)
    one_more = e.add(x, 1.0)
    lost = e.sub(x, e.sub(one_more, 1.0))
    return copy_sign(e, _log_of_sum(e, one_more, e.div(lost, one_more)), x)  # that of zero, too


def tanh(e: FunctionEmitter, x: Value) -> Value:
    """Emit tanh. Error below 2.5 ulp for float."""
    if x.type == "double":
        return e.library_call("tanh", x)
    twice = clamp(e, e.mul(magnitude(e, x), 2.0), 0.0, 20.0)
    t = _exp_minus_one(e, twice)
    return copy_sign(e, e.div(t, e.add(t, 2.0)), x)


def sigmoid(e: FunctionEmitter, x: Value) -> Value:
    """Emit the logistic function. Error below 3 ulp; of large negative numbers it underflows gradually."""
    power = exp(e, e.neg(magnitude(e, x)))
    return e.div(e.select(e.compare("olt", x, 0.0), power, 1.0), e.add(1.0, power))


def erf(e: FunctionEmitter, x: Value) -> Value:
    """Emit erf. Error below 2 ulp for float."""
    if x.type == "double":
        return e.library_call("erf", x)
    a = magnitude(e, x)
    near = e.fma(a, polynomial(e, e.mul(a, a), ERF_NEAR), a)
    bounded = e.select(e.compare("ogt", a, ERF_LAST), ERF_LAST, a)  # NaN stays
    far = e.sub(1.0, _two_to_the(e, polynomial(e, bounded, ERF_FAR)))
    return copy_sign(e, e.select(e.compare("olt", a, ERF_SPLIT), near, far), x)


def _two_to_the(e: FunctionEmitter, x: Value) -> Value:
    """2 ** x for normal results; good to seven digits."""
    n = e.intrinsic("rint", x)
    f = e.sub(x, n)
    return _scale(e, e.fma(f, polynomial(e, f, EXP2_FLOAT), 1.0), Whole(n))


def magnitude(e: FunctionEmitter, x: Value) -> Value:
    """|x|."""
    return e.intrinsic("fabs", x)


def copy_sign(e: FunctionEmitter, size: Operand, sign: Value) -> Value:
    """Emit `size` with the sign of `sign`."""
    return e.intrinsic("copysign", size, sign)


def sqrt(e: FunctionEmitter, x: Value) -> Value:
    """Emit the square root, correctly rounded."""
    return e.intrinsic("sqrt", x)


def rsqrt(e: FunctionEmitter, x: Value) -> Value:
    """Emit 1 / sqrt(x). Error below 1.5 ulp."""
    return e.div(1.0, e.intrinsic("sqrt", x))


def power(e: FunctionEmitter, x: Value, y: Value) -> Value:
    """Emit x ** y as C's pow; error below 1 ulp for float (computed in double)."""
    x, y = e.align_lanes(x, y)
    if x.type == "double":
        return e.library_call("pow", x, y)
    wide_x, wide_y = e.convert("fpext", x, "double"), e.convert("fpext", y, "double")
    size = magnitude(e, wide_x)
    result = exp(e, e.mul(wide_y, log(e, size)))
    negative = e.compare("olt", wide_x, 0.0)
    is_whole = e.compare("oeq", e.intrinsic("floor", wide_y), wide_y)
    half = e.mul(wide_y, 0.5)
    is_odd = e.binary("and", is_whole, e.compare("one", e.intrinsic("floor", half), half))
    signed_zero = copy_sign(e, 1.0, wide_x)
    result = e.select(is_odd, copy_sign(e, result, signed_zero), result)
    infinite_y = e.compare("oeq", magnitude(e, wide_y), math.inf)
    fraction = e.binary("and", negative, e.binary("xor", e.binary("or", is_whole, infinite_y), 1))
    finite_x = e.compare("olt", size, math.inf)
    result = e.select(e.binary("and", fraction, finite_x), math.nan, result)
    # pow(x, 0) = pow(1, y) = 1 even for NaN; (-1) ** inf = 1.
    is_one = e.binary("or", e.compare("oeq", wide_y, 0.0), e.compare("oeq", wide_x, 1.0))
    is_one = e.binary("or", is_one, e.binary("and", infinite_y, e.compare("oeq", size, 1.0)))
    return e.convert("fptrunc", e.select(is_one, 1.0, result), "float")
