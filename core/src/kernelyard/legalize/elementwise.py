"""Rules of elementwise operators: unary and binary arithmetic, tests, conversion, clipping, choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernelyard import dtypes
from kernelyard.legalize.common import elementwise
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Expr, binary, cast, const, equal, maximum, minimum, select, unary

UNARY: dict[str, Callable[[Expr], Expr]] = {
    **{
        name: (lambda x, op=name: unary(op, x))
        for name in (
            *("abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "erf", "sigmoid"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
            *("floor", "ceil", "round", "trunc", "isnan", "isinf"),
        )
    },
    "negative": lambda x: -x,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "isfinite": lambda x: unary("abs", x) < float("inf"),
    "logical_not": lambda x: ~x,
    "bitwise_not": lambda x: ~x,
}


def _divide(a: Expr, b: Expr) -> Expr:
    return binary("div" if dtypes.is_float(a.dtype) else "truncdiv", a, b)


def _power(a: Expr, b: Expr) -> Expr:
    if dtypes.is_float(a.dtype) or a.dtype in dtypes.UNSIGNED:
        return binary("pow", a, b)
    # a ** -k is 1 / a ** k rounded towards zero: nonzero for 1 and -1 alone.
    reciprocal = select(equal(a, 1), 1, select(equal(a, -1), 1 - 2 * (b & 1), const(0, a.dtype)))
    return select(b < 0, reciprocal, binary("pow", a, maximum(b, 0)))


BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    **{
        name: (lambda a, b, op=op: binary(op, a, b))
        for name, op in (
            *(("add", "add"), ("subtract", "sub"), ("multiply", "mul"), ("maximum", "max"), ("minimum", "min")),
            *(("mod", "mod"), ("fmod", "fmod"), ("left_shift", "shl"), ("right_shift", "shr")),
            *(("equal", "eq"), ("not_equal", "ne"), ("less", "lt"), ("less_equal", "le")),
            *(("greater", "gt"), ("greater_equal", "ge")),
            *((f"{kind}_{op}", op) for kind in ("logical", "bitwise") for op in ("and", "or", "xor")),
        )
    },
    "divide": _divide,
    "power": _power,
    "nn.prelu": lambda x, slope: select(x < 0, slope * x, x),
}


def _register(name: str, body: Callable[..., Expr], widen: bool = True) -> None:
    @legalize(name, widen=widen)
    def rule(b: RuleBuilder, *operands: Operand) -> Buffer:
        return elementwise(b, b.result.shape, body, *operands)


for _name, _body in {**UNARY, **BINARY}.items():
    _register(_name, _body)
_register("where", select, widen=False)


@legalize("astype")
def astype(b: RuleBuilder, x: Operand, *, dtype: str) -> Buffer:
    return elementwise(b, x.shape, lambda v: cast(v, dtype), x)


@legalize("clip", widen=True)
def clip(b: RuleBuilder, x: Operand, *, min: float | None, max: float | None) -> Buffer:  # noqa: A002
    def body(v: Expr) -> Expr:
        if min is not None:
            v = maximum(v, _clip_bound(min, x.dtype))
        return v if max is None else minimum(v, _clip_bound(max, x.dtype))

    return elementwise(b, x.shape, body, x)


def _clip_bound(value: float, dtype: str) -> Expr:
    if dtypes.is_float(dtype):
        return const(value, dtype)
    limits = np.iinfo(dtype)
    if not np.isfinite(value):
        return const(int(limits.max if value > 0 else limits.min), dtype)
    return const(int(np.clip(value, limits.min, limits.max)), dtype)
