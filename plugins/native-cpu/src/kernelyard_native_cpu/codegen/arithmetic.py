"""The scalar operators of loop-level code on values in registers, as tables from operator to what is emitted."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard import dtypes
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Value, literal, literal_int
from kernelyard_native_cpu.codegen.elementary import magnitude, power
from kernelyard_native_cpu.codegen.types import compute_type
from kernelyard_native_cpu.codegen.unary_functions import UNARY_FUNCTIONS

# operator: (predicate of floats, of signed integers, of unsigned integers and bools)
_PREDICATES = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
_PLAIN = ("add", "sub", "mul", "and", "or", "xor")
_PLAIN_FLOAT = ("add", "sub", "mul", "div")
_ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc"}

BinaryRule = Callable[[FunctionEmitter, Value, Value, str], Value]


def constant(value: bool | int | float, dtype: str) -> Value:
    """Return a literal of a dtype, in the type it is computed in."""
    return literal(value, compute_type(dtype))


def unary(e: FunctionEmitter, op: str, x: Value, dtype: str) -> Value:
    """Emit `op` of a value of a dtype."""
    if op in UNARY_FUNCTIONS:
        return UNARY_FUNCTIONS[op](e, x)
    if op in _ROUNDING:
        return e.intrinsic(_ROUNDING[op], x)
    return _UNARY[op](e, x, dtype)


def binary(e: FunctionEmitter, op: str, a: Value, b: Value, dtype: str) -> Value:
    """Emit `op` of two values of a dtype."""
    if op in _PREDICATES:
        of_float, of_signed, of_unsigned = _PREDICATES[op]
        kind = of_float if a.is_float else of_signed if dtype in dtypes.SIGNED else of_unsigned
        return e.compare(kind, a, b)
    if op in (_PLAIN_FLOAT if a.is_float else _PLAIN):
        return e.binary(op, a, b)
    return (_FLOAT if a.is_float else _INTEGER)[op](e, a, b, dtype)


def _all_ones(e: FunctionEmitter, x: Value) -> Value:
    return e.binary("xor", x, -1)


def _neg(e: FunctionEmitter, x: Value, dtype: str) -> Value:
    return e.neg(x) if x.is_float else e.binary("sub", 0, x)


def _abs(e: FunctionEmitter, x: Value, dtype: str) -> Value:
    if x.is_float:
        return magnitude(e, x)
    if dtype not in dtypes.SIGNED:
        return x
    return e.select(e.compare("slt", x, 0), _neg(e, x, dtype), x)


def _sign(e: FunctionEmitter, x: Value, dtype: str) -> Value:
    if x.is_float:  # zeros and NaN give themselves
        one = e.intrinsic("copysign", 1.0, x)
        return e.select(e.compare("one", x, 0.0), one, x)
    positive = e.select(e.compare("ne", x, 0), literal(1, x.type), 0)
    if dtype not in dtypes.SIGNED:
        return positive
    return e.select(e.compare("slt", x, 0), -1, positive)


_UNARY: dict[str, Callable[[FunctionEmitter, Value, str], Value]] = {
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "not": lambda e, x, dtype: _all_ones(e, x),
    "bitnot": lambda e, x, dtype: _all_ones(e, x),
    "isnan": lambda e, x, dtype: e.compare("uno", x, x),
    "isinf": lambda e, x, dtype: e.compare("oeq", magnitude(e, x), float("inf")),
}


def extremum(e: FunctionEmitter, op: str, a: Value, b: Value, dtype: str) -> Value:
    """Emit min or max; NaN if an operand is NaN."""
    if not a.is_float:
        return _integer_extremum(e, op, a, b, dtype)
    # With a literal that is no NaN one comparison is enough: a NaN compares false and stays.
    if a.is_literal and not b.is_literal:
        a, b = b, a
    if b.is_literal and not b.ref.startswith("0x7FF8"):
        return e.select(e.compare("olt" if op == "max" else "ogt", a, b), b, a)
    return e.intrinsic("maximum" if op == "max" else "minimum", a, b, flags="nsz")


def _integer_extremum(e: FunctionEmitter, op: str, a: Value, b: Value, dtype: str) -> Value:
    if dtype == "bool":
        return e.binary("or" if op == "max" else "and", a, b)
    return e.intrinsic(("s" if dtype in dtypes.SIGNED else "u") + op, a, b)


def _safe_divide(e: FunctionEmitter, op: str, a: Value, b: Value, dtype: str) -> Value:
    """Division or remainder that never traps: x / 0 and x % 0 are 0, the lowest integer / -1 wraps."""
    signed = dtype in dtypes.SIGNED
    word = ("s" if signed else "u") + op
    known = literal_int(b)
    if known is not None and known not in (0, -1):
        return e.binary(word, a, b, floor=e.guard_depth)
    is_zero = e.compare("eq", b, 0)
    divisor = e.select(is_zero, 1, b)
    if signed:
        is_minus_one = e.compare("eq", b, -1)
        divisor = e.select(is_minus_one, 1, divisor)
    result = e.binary(word, a, divisor)
    if signed and op == "div":
        result = e.select(is_minus_one, _neg(e, a, dtype), result)  # pyright: ignore[reportPossiblyUnboundVariable]
    return e.select(is_zero, 0, result)


def _floordiv(e: FunctionEmitter, a: Value, b: Value, dtype: str) -> Value:
    quotient = _safe_divide(e, "div", a, b, dtype)
    if dtype not in dtypes.SIGNED:
        return quotient
    below = e.select(_has_other_sign(e, e.sub(a, e.mul(quotient, b)), b), literal(-1, a.type), 0)
    is_zero = e.compare("eq", b, 0)
    floored = e.add(quotient, below)
    return e.select(is_zero, quotient, floored) if literal_int(b) is None else floored


def _has_other_sign(e: FunctionEmitter, rest: Value, divisor: Value) -> Value:
    """Return True where a remainder is not zero and its sign is not the divisor's."""
    differs = e.compare("slt", e.binary("xor", rest, divisor), 0)
    return e.binary("and", e.compare("ne", rest, 0), differs)


def _mod(e: FunctionEmitter, a: Value, b: Value, dtype: str) -> Value:
    if a.is_float:
        rest = _fmod(e, a, b, dtype)
        differs = e.binary("xor", e.compare("olt", rest, 0.0), e.compare("olt", b, 0.0))
        wrapped = e.select(differs, e.add(rest, b), rest)
        is_zero = e.compare("oeq", rest, 0.0)
        return e.select(is_zero, e.intrinsic("copysign", rest, b), wrapped)
    rest = _safe_divide(e, "rem", a, b, dtype)
    if dtype not in dtypes.SIGNED:
        return rest
    return e.select(_has_other_sign(e, rest, b), e.add(rest, b), rest)


def _fmod(e: FunctionEmitter, a: Value, b: Value, dtype: str) -> Value:
    if a.is_float:
        return e.library_call("fmod" if a.type == "double" else "fmodf", a, b)
    return _safe_divide(e, "rem", a, b, dtype)


def _shift(e: FunctionEmitter, op: str, a: Value, b: Value, dtype: str) -> Value:
    """Shifts by the width or more (or by less than 0) leave nothing but sign bits."""
    too_far = e.compare("uge", b, BITS[a.type])
    if op == "shr" and dtype in dtypes.SIGNED:
        return e.binary("ashr", a, e.select(too_far, BITS[a.type] - 1, b))
    shifted = e.binary("shl" if op == "shl" else "lshr", a, e.select(too_far, 0, b))
    return e.select(too_far, 0, shifted)


def _power_float(e: FunctionEmitter, a: Value, b: Value, dtype: str) -> Value:
    simple = {2.0: lambda: e.mul(a, a), 1.0: lambda: a, 0.5: None, 3.0: lambda: e.mul(e.mul(a, a), a)}
    for exponent, emit in simple.items():
        if emit and b.ref == literal(exponent, b.type).ref:
            return emit()
    return power(e, a, b)


def _power_integer(e: FunctionEmitter, a: Value, b: Value, dtype: str) -> Value:
    """By squaring; negative exponents give 0, but for bases 1 and -1."""
    a, b = e.align_lanes(a, b)
    one = e.broadcast(literal(1, a.type), a.lanes)
    with e.loop(0, BITS[a.type], [one, a, b], runs=True) as (_, carried):
        result, base, exponent = carried
        odd = e.compare("ne", e.binary("and", exponent, 1), 0)
        result = e.select(odd, e.mul(result, base), result)
        carried[:] = result, e.mul(base, base), e.binary("lshr", exponent, 1)
    result = carried[0]
    if dtype not in dtypes.SIGNED:
        return result
    is_unit = e.binary("or", e.compare("eq", a, one), e.compare("eq", a, -1))
    negative = e.compare("slt", b, 0)
    return e.select(e.binary("and", negative, _all_ones(e, is_unit)), 0, result)


_FLOAT: dict[str, BinaryRule] = {
    "mod": _mod,
    "fmod": _fmod,
    "pow": _power_float,
    "min": lambda e, a, b, dtype: extremum(e, "min", a, b, dtype),
    "max": lambda e, a, b, dtype: extremum(e, "max", a, b, dtype),
}
_INTEGER: dict[str, BinaryRule] = {
    "floordiv": _floordiv,
    "truncdiv": lambda e, a, b, dtype: _safe_divide(e, "div", a, b, dtype),
    "mod": _mod,
    "fmod": _fmod,
    "pow": _power_integer,
    "min": lambda e, a, b, dtype: extremum(e, "min", a, b, dtype),
    "max": lambda e, a, b, dtype: extremum(e, "max", a, b, dtype),
    "shl": lambda e, a, b, dtype: _shift(e, "shl", a, b, dtype),
    "shr": lambda e, a, b, dtype: _shift(e, "shr", a, b, dtype),
}

# --- reducers ------------------------------------------------------------------------------------------------------
_ACROSS_FLOAT = {"sum": "fadd", "prod": "fmul", "max": "fmaximum", "min": "fminimum"}
_NEUTRAL = {"fadd": (-0.0,), "fmul": (1.0,)}
_ACROSS_INTEGER = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}


def combine(e: FunctionEmitter, reducer: str, a: Value, b: Value, dtype: str) -> Value:
    """Return the next state of a reduction."""
    if reducer in ("max", "min"):
        return extremum(e, reducer, a, b, dtype)
    if reducer in ("any", "all"):
        return e.binary("or" if reducer == "any" else "and", a, b)
    if dtype == "bool":
        return e.binary("or" if reducer == "sum" else "and", a, b)
    return e.add(a, b) if reducer == "sum" else e.mul(a, b)


def across_lanes(e: FunctionEmitter, reducer: str, vector: Value, dtype: str) -> Value:
    """Return all lanes combined into a scalar."""
    if vector.is_float:
        name = _ACROSS_FLOAT[reducer]
        start = [literal(neutral, vector.type) for neutral in _NEUTRAL.get(name, ())]
        return e.across_lanes(name, vector, *start, flags="reassoc" if start else "nsz")
    if reducer in ("max", "min") and dtype != "bool":
        name = ("s" if dtype in dtypes.SIGNED else "u") + reducer
    elif dtype == "bool":
        name = "or" if reducer in ("max", "sum", "any") else "and"
    else:
        name = _ACROSS_INTEGER[reducer]
    return e.across_lanes(name, vector)


def is_more_extreme(e: FunctionEmitter, reducer: str, value: Value, best: Value, dtype: str) -> Value:
    """Return True where `value` takes the place of `best`: the first of equals stays, and the first NaN wins."""
    better = binary(e, "gt" if reducer == "argmax" else "lt", value, best, dtype)
    if not value.is_float:
        return better
    first_nan = e.binary("and", e.compare("uno", value, value), e.compare("ord", best, best))
    return e.binary("or", better, first_nan)
