"""Canonicalization of elementwise operators."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr, FunctionMutator
from kernelyard.transform.pass_infra.rewrite_rule import Rule, defining_call, is_uniform, make, uniform_value


# --- operands of broadcasting operators -------------------------------------------------------------------------------
def _constant_last(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Commutative operators have their constant on the right."""
    a, b = call.args
    return make(call.op_name, b, a) if isinstance(a, Constant) and not isinstance(b, Constant) else None


def _scalar_constants(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return a constant whose elements are all the same becomes a scalar, where the other operand has the result's
    shape.
    """
    scalars = [_as_scalar(arg) for arg in call.args]
    if all(new is old for new, old in zip(scalars, call.args, strict=True)):
        return None
    return _replace_operands(call, scalars)


def _as_scalar(arg: Expr) -> Expr:
    value = uniform_value(arg) if isinstance(arg, Constant) and arg.data.ndim else None
    return arg if value is None else Constant(value)


def _implicit_broadcast(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return an operand that is broadcast to the result's shape needs no `broadcast_to`: the operator does it."""
    sources = [defining_call(mutator, arg, "broadcast_to") for arg in call.args]
    for index, source in enumerate(sources):
        if source is not None:
            operands = [source.args[0] if i == index else arg for i, arg in enumerate(call.args)]
            shorter = _replace_operands(call, operands)
            if shorter is not None:
                return shorter
    return None


def _replace_operands(call: Call, operands: list[Expr]) -> Call | None:
    # Operands of fewer elements never make a valid call invalid, so inference cannot fail here.
    new = Call(call.op, operands, call.attrs)
    return new if new.type == call.type else None


# --- identities -------------------------------------------------------------------------------------------------------
def _neutral_right(value: float) -> Rule:
    def rule(mutator: FunctionMutator, call: Call) -> Expr | None:
        return call.args[0] if is_uniform(call.args[1], value) else None

    return rule


def _subtract_constant(mutator: FunctionMutator, call: Call) -> Expr | None:
    x, c = call.args
    if not isinstance(c, Constant) or isinstance(x, Constant):
        return None
    return make("add", x, Constant(np.negative(c.data)))


def _subtract_negative(mutator: FunctionMutator, call: Call) -> Expr | None:
    negated = defining_call(mutator, call.args[1], "negative")
    return make("add", call.args[0], negated.args[0]) if negated else None


def _add_negative(mutator: FunctionMutator, call: Call) -> Expr | None:
    a, b = call.args
    for x, y in ((a, b), (b, a)):
        negated = defining_call(mutator, y, "negative")
        if negated:
            return make("subtract", x, negated.args[0])
    return None


def _divide_by_power_of_two(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Division becomes multiplication where the reciprocals are exact."""
    x, c = call.args
    if not isinstance(c, Constant) or isinstance(x, Constant) or not dtypes.is_float(call.tensor_type.dtype):
        return None
    wide = c.data.astype(np.float64)
    if not np.all(np.isfinite(wide)) or np.any(np.abs(np.frexp(wide)[0]) != 0.5):
        return None
    # Denormal numbers may be flushed to zero, and so are no safe reciprocals.
    if np.any(np.abs(1 / wide) < float(ml_dtypes.finfo(c.data.dtype).smallest_normal)):
        return None
    return make("multiply", x, Constant((1 / wide).astype(c.data.dtype)))


def _reciprocal_of(mutator: FunctionMutator, call: Call) -> Expr | None:
    a, b = call.args
    is_one = dtypes.is_float(call.tensor_type.dtype) and is_uniform(a, 1)
    return make("reciprocal", b) if is_one else None


def _reciprocal_square_root(mutator: FunctionMutator, call: Call) -> Expr | None:
    root = defining_call(mutator, call.args[0], "sqrt")
    return make("rsqrt", root.args[0]) if root else None


def _square(mutator: FunctionMutator, call: Call) -> Expr | None:
    a, b = call.args
    return make("square", a) if a is b and dtypes.is_float(call.tensor_type.dtype) else None


def _power(mutator: FunctionMutator, call: Call) -> Expr | None:
    x, exponent = call.args
    if is_uniform(exponent, 1):
        return x
    if not dtypes.is_float(call.tensor_type.dtype):
        return None
    if is_uniform(exponent, 2):
        return make("square", x)
    return make("reciprocal", x) if is_uniform(exponent, -1) else None


def _involution(op: str) -> Rule:
    """Rewrite op(op(x)) to x."""

    def rule(mutator: FunctionMutator, call: Call) -> Expr | None:
        inner = defining_call(mutator, call.args[0], op)
        return inner.args[0] if inner else None

    return rule


def _select(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return a choice that is known, or that does not matter."""
    condition, x, y = call.args
    known = uniform_value(condition)
    if x is y:
        return x
    return None if known is None else (x if known else y)


# --- limits -----------------------------------------------------------------------------------------------------------
def _limit(bound: str, infinity: float) -> Rule:
    """Rewrite maximum(x, scalar) to clip(x, min=scalar); minimum likewise."""

    def rule(mutator: FunctionMutator, call: Call) -> Expr | None:
        x, c = call.args
        value = uniform_value(c)
        if value is None or not dtypes.is_float(call.tensor_type.dtype) or math.isnan(float(value)):
            return None
        if math.isinf(float(value)):
            return x if float(value) == infinity else None
        return make("clip", x, **{bound: float(value)})

    return rule


def _limits(call: Call) -> tuple[float, float]:
    if call.op_name == "nn.relu":
        return 0.0, math.inf
    low, high = call.attrs["min"], call.attrs["max"]
    return -math.inf if low is None else low, math.inf if high is None else high


def _clip(mutator: FunctionMutator, call: Call) -> Expr | None:
    low, high = _limits(call)
    if not dtypes.is_float(call.tensor_type.dtype):
        return call.args[0] if low == -math.inf and high == math.inf else None
    return _clip_of_clip(mutator, call) or _simpler_clip(call, low, high)


def _simpler_clip(call: Call, low: float, high: float) -> Expr | None:
    """Simplify a clip: infinite limits are removed, and clip(x, 0, inf) becomes relu."""
    x = call.args[0]
    if low == 0.0 and high == math.inf:
        return make("nn.relu", x)
    if low == -math.inf and high == math.inf:
        return x
    is_plain = call.attrs["min"] != -math.inf and call.attrs["max"] != math.inf
    return None if is_plain else make("clip", x, **_finite(low, high))


def _finite(low: float, high: float) -> dict[str, float]:
    return {name: value for name, value in (("min", low), ("max", high)) if math.isfinite(value)}


def _clip_of_clip(mutator: FunctionMutator, call: Call) -> Expr | None:
    inner = defining_call(mutator, call.args[0], "clip", "nn.relu")
    if inner is None:
        return None
    (a, b), (c, d) = _limits(inner), _limits(call)
    low, high = max(a, c), min(b, d)
    is_range = low <= high and low < math.inf and high > -math.inf
    return make("clip", inner.args[0], **_finite(low, high)) if is_range else None


# --- conversions ------------------------------------------------------------------------------------------------------
def _astype(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Remove a conversion to the same dtype, and a first conversion that loses nothing."""
    x = call.args[0]
    if x.tensor_type.dtype == call.attrs["dtype"]:
        return x
    inner = defining_call(mutator, x, "astype")
    if inner is None or not _keeps_values(inner.args[0].tensor_type.dtype, x.tensor_type.dtype):
        return None
    return make("astype", inner.args[0], dtype=call.attrs["dtype"])


def _keeps_values(source: str, target: str) -> bool:
    """Return True when every value of `source` is one of `target`."""
    if source == "bool" or source == target:
        return True
    if not dtypes.is_float(source) and dtypes.is_float(target):
        bits = 8 * dtypes.itemsize(source) - source.startswith("int")
        return bits <= _MANTISSA_BITS[target]
    if dtypes.is_float(source) and dtypes.is_float(target):
        return target == "float64" or (target == "float32" and dtypes.itemsize(source) < 4)
    return bool(np.can_cast(dtypes.to_numpy(source), dtypes.to_numpy(target), "safe"))


_MANTISSA_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "float8_e4m3fn": 4, "float8_e5m2": 3}

_BROADCASTING = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "power",
    "maximum",
    "minimum",
    "mod",
    "fmod",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "where",
]
_COMMUTATIVE = ("add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or")

_SPECIFIC: dict[str, tuple[Rule, ...]] = {
    "add": (_neutral_right(0), _add_negative),
    "subtract": (_neutral_right(0), _subtract_constant, _subtract_negative),
    "multiply": (_neutral_right(1), _square),
    "divide": (_neutral_right(1), _divide_by_power_of_two, _reciprocal_of),
    "power": (_power,),
    "maximum": (_limit("min", -math.inf),),
    "minimum": (_limit("max", math.inf),),
    "reciprocal": (_reciprocal_square_root,),
    "negative": (_involution("negative"),),
    "logical_not": (_involution("logical_not"),),
    "bitwise_not": (_involution("bitwise_not"),),
    "clip": (_clip,),
    "nn.relu": (_clip_of_clip,),
    "astype": (_astype,),
    "where": (_select,),
}


def _rules_of_broadcasting(name: str) -> tuple[Rule, ...]:
    order = (_constant_last,) if name in _COMMUTATIVE else ()
    return (*order, _scalar_constants, _implicit_broadcast, *_SPECIFIC.get(name, ()))


ARITHMETIC_RULES: dict[str, tuple[Rule, ...]] = {
    **_SPECIFIC,
    **{name: _rules_of_broadcasting(name) for name in _BROADCASTING},
}
