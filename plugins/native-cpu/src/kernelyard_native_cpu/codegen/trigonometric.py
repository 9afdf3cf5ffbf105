"""Trigonometric and hyperbolic functions and their inverses.

They are rare in networks: those of `float` are computed in `double` and rounded once, with an error below 1 unit in the
last place; those of `double` call the C library lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, literal
from kernelyard_native_cpu.codegen.elementary import Emit, copy_sign, exp, log, magnitude, polynomial

# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in r**2, |r| <= pi / 4
SIN = (-0.16666666639556912, 0.008333329143835798, -0.00019839256613726026, 2.7175642969721678e-06)
COS = (0.04166666661920222, -0.001388888343827905, 2.479943637484158e-05, -2.7203301291835397e-07)
HALF_PI_HIGH, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17
# atan(x) / x in x**2 on |x| <= tan(pi / 8)
ATAN = (
    0.9999999999770652,
    -0.33333332021919654,
    0.1999987740243415,
    -0.14281396527600784,
    0.11037979515406054,
    -0.08441423256914805,
    0.04675294255114164,
)


def _quadrant(e: FunctionEmitter, x: Value) -> tuple[Value, Value]:
    """Quadrant (i64) and rest in [-pi/4, pi/4] of a double that holds a float."""
    n = e.intrinsic("rint", e.mul(x, 1 / HALF_PI_HIGH))
    r = e.fma(n, -HALF_PI_HIGH, x)
    r = e.fma(n, -HALF_PI_LOW, r)
    in_range = e.compare("olt", magnitude(e, n), 2.0**62)
    return e.convert("fptosi", e.select(in_range, n, 0.0), "i64"), r


def _sin_and_cos(e: FunctionEmitter, x: Value) -> tuple[Value, Value]:
    quadrant, r = _quadrant(e, x)
    z = e.mul(r, r)
    sine = e.fma(e.mul(r, z), polynomial(e, z, SIN), r)
    cosine = e.fma(e.mul(z, z), polynomial(e, z, COS), e.fma(z, -0.5, 1.0))
    odd = e.compare("ne", e.binary("and", quadrant, 1), 0)
    negated = e.compare("ne", e.binary("and", quadrant, 2), 0)
    sine, cosine = e.select(odd, cosine, sine), e.select(odd, e.neg(sine), cosine)
    return e.select(negated, e.neg(sine), sine), e.select(negated, e.neg(cosine), cosine)


def _by_double(name: str, formula: Callable[[FunctionEmitter, Value], Value], needs_fma: bool = False) -> Emit:
    """Return a function of float by a formula in double; of double by the C library."""

    def emit(e: FunctionEmitter, x: Value) -> Value:
        if x.type == "double":
            return e.library_call(name, x)
        wide = e.convert("fpext", x, "double")
        result = e.library_call(name, wide) if needs_fma and not e.has_fma else formula(e, wide)
        return e.convert("fptrunc", result, "float")

    emit.__doc__ = f"{name}; error below 1 ulp for float."
    return emit


def _far_periodic(name: str, formula: Callable[[FunctionEmitter, Value], Value]) -> Emit:
    """sin, cos, tan: beyond 2**27 the quadrant is not exact enough in double; the C library takes these."""
    near = _by_double(name, formula, needs_fma=True)
    by_library = _by_double(name, lambda e, x: e.library_call(name, x))

    def emit(e: FunctionEmitter, x: Value) -> Value:
        if x.type == "double" or not e.has_fma:
            return near(e, x)
        far = e.compare("ogt", magnitude(e, x), 2.0**27)
        if far.lanes > 1:
            far = e.across_lanes("or", far)
        return e.branch(far, lambda: [by_library(e, x)], lambda: [near(e, x)])[0]

    return emit


def _atan(e: FunctionEmitter, x: Value) -> Value:
    a = magnitude(e, x)
    steep = e.compare("ogt", a, 1.0)
    a = e.select(steep, e.div(1.0, a), a)
    # atan(a) = pi/4 + atan((a - 1) / (a + 1)) brings [tan(pi/8), 1] into the polynomial's interval.
    upper = e.compare("ogt", a, math.tan(math.pi / 8))
    a = e.select(upper, e.div(e.sub(a, 1.0), e.add(a, 1.0)), a)
    y = e.mul(a, polynomial(e, e.mul(a, a), ATAN))
    y = e.add(y, e.select(upper, literal(math.pi / 4, x.type), 0.0))
    return copy_sign(e, e.select(steep, e.sub(math.pi / 2, y), y), x)


def _asin(e: FunctionEmitter, x: Value) -> Value:
    return _atan(e, e.div(x, e.intrinsic("sqrt", e.mul(e.sub(1.0, x), e.add(1.0, x)))))


def _acos(e: FunctionEmitter, x: Value) -> Value:
    # At -1 the quotient is infinite and its arc tangent pi/2: right again.
    return e.mul(2.0, _atan(e, e.intrinsic("sqrt", e.div(e.sub(1.0, x), e.add(1.0, x)))))


def _sin(e: FunctionEmitter, x: Value) -> Value:
    return _keep_zero(e, x, _sin_and_cos(e, x)[0])


def _tan(e: FunctionEmitter, x: Value) -> Value:
    sine, cosine = _sin_and_cos(e, x)
    return _keep_zero(e, x, e.div(sine, cosine))


def _keep_zero(e: FunctionEmitter, x: Value, y: Value) -> Value:
    """`y`, but zeros as they are: the reduction loses their sign."""
    return e.select(e.compare("oeq", x, 0.0), x, y)


def _sinh(e: FunctionEmitter, x: Value) -> Value:
    up = exp(e, x)
    large = e.mul(0.5, e.sub(up, e.div(1.0, up)))
    small = e.fma(e.mul(x, e.mul(x, x)), 1 / 6, x)
    return e.select(e.compare("olt", magnitude(e, x), 1e-3), small, large)


def _cosh(e: FunctionEmitter, x: Value) -> Value:
    up = exp(e, magnitude(e, x))
    return e.mul(0.5, e.add(up, e.div(1.0, up)))


def _asinh(e: FunctionEmitter, x: Value) -> Value:
    a = magnitude(e, x)
    large = log(e, e.add(a, e.intrinsic("sqrt", e.fma(a, a, 1.0))))
    small = e.fma(e.mul(a, e.mul(a, a)), -1 / 6, a)
    return copy_sign(e, e.select(e.compare("olt", a, 1e-3), small, large), x)


def _acosh(e: FunctionEmitter, x: Value) -> Value:
    t = e.sub(x, 1.0)
    # The root of each factor: of a negative one it is NaN, as it must be.
    root = e.mul(e.intrinsic("sqrt", t), e.intrinsic("sqrt", e.add(x, 1.0)))
    return _log1p_double(e, e.add(t, root))


def _atanh(e: FunctionEmitter, x: Value) -> Value:
    a = magnitude(e, x)
    quotient = e.div(e.mul(2.0, a), e.sub(1.0, a))
    return copy_sign(e, e.mul(0.5, _log1p_double(e, quotient)), x)


def _log1p_double(e: FunctionEmitter, x: Value) -> Value:
    """log(1 + x) of what is not slightly below 0, exact enough to be rounded to float."""
    large = log(e, e.add(x, 1.0))
    small = e.mul(x, e.fma(x, e.fma(x, 1 / 3, -0.5), 1.0))
    return e.select(e.compare("olt", magnitude(e, x), 1e-4), small, large)


FUNCTIONS: dict[str, Emit] = {
    "sin": _far_periodic("sin", _sin),
    "cos": _far_periodic("cos", lambda e, x: _sin_and_cos(e, x)[1]),
    "tan": _far_periodic("tan", _tan),
    "asin": _by_double("asin", _asin),
    "acos": _by_double("acos", _acos),
    "atan": _by_double("atan", _atan),
    "sinh": _by_double("sinh", _sinh),
    "cosh": _by_double("cosh", _cosh),
    "asinh": _by_double("asinh", _asinh),
    "acosh": _by_double("acosh", _acosh),
    "atanh": _by_double("atanh", _atanh),
}
