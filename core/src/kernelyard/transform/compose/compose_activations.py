"""Compose activation functions from arithmetic: gelu, silu, mish, hard_swish, softplus, sigmoid and kin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kernelyard.ir import Call, Expr, FunctionMutator, Var
from kernelyard.transform.compose.polynomial import ONE, Polynomial, PolynomialReader, arithmetic_leaves, is_close
from kernelyard.transform.pass_infra.rewrite_rule import Rule, defining_call, is_uniform, make, restrict_to_floats

_TANH_SCALE = math.sqrt(2 / math.pi)
_HALF_OF_ONE_PLUS = {("x",): 0.5, ("e", "x"): 0.5}
_PRODUCT = {("e", "x"): 1.0}


@dataclass(frozen=True)
class _Gated:
    """`outer(x, e)` with `e = inner(argument(x))` is `composed(x)`."""

    inner: str
    argument: Polynomial
    outer: Polynomial
    composed: str


def _tanh_argument(scale: float) -> Polynomial:
    return {("x",): scale, ("x", "x", "x"): scale * 0.044715}


def _with_mirrored(*forms: _Gated) -> tuple[_Gated, ...]:
    """Return the forms, and for odd gates the same with f(-u) for -f(u)."""
    odd = [form for form in forms if form.inner in ("erf", "tanh")]
    return (
        *forms,
        *(replace(f, argument=_match_negation(f.argument, "x"), outer=_match_negation(f.outer, "e")) for f in odd),
    )


def _match_negation(polynomial: Polynomial, name: str) -> Polynomial:
    return {monomial: -c if name in monomial else c for monomial, c in polynomial.items()}


_GATED = _with_mirrored(
    _Gated("erf", {("x",): math.sqrt(0.5)}, _HALF_OF_ONE_PLUS, "nn.gelu"),
    _Gated("tanh", _tanh_argument(_TANH_SCALE), _HALF_OF_ONE_PLUS, "nn.gelu_tanh"),
    # (1 + tanh(u)) / 2 is sigmoid(2 u)
    _Gated("sigmoid", _tanh_argument(2 * _TANH_SCALE), _PRODUCT, "nn.gelu_tanh"),
    _Gated("sigmoid", {("x",): 1.0}, _PRODUCT, "nn.silu"),
    _Gated("tanh", {("x",): 0.5}, _HALF_OF_ONE_PLUS, "nn.silu"),
)
_GATES = frozenset(form.inner for form in _GATED) | {"clip", "nn.hard_sigmoid"}


def _compose_gate(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Return a product of x and a gate that depends on x."""
    _, leaves = arithmetic_leaves(mutator, call.args)
    for gate in leaves:
        inner = defining_call(mutator, gate, *_GATES)
        if inner is None or gate.type != call.type:
            continue
        for recognise in (_by_table, _mish, _hard):
            composed = recognise(mutator, call, gate, inner)
            if composed is not None:
                return composed
    return None


def _by_table(mutator: FunctionMutator, call: Call, gate: Var, inner: Call) -> Expr | None:
    forms = [form for form in _GATED if form.inner == inner.op_name]
    for x in _bases(mutator, inner.args[0], call) if forms else ():
        argument = PolynomialReader(mutator, {x: "x"}).read(inner.args[0])
        outer = PolynomialReader(mutator, {x: "x", gate: "e"}).read_call(call)
        for form in forms:
            if _agree(call, (argument, form.argument), (outer, form.outer)):
                return make(form.composed, x)
    return None


def _agree(call: Call, *pairs: tuple[Polynomial | None, Polynomial]) -> bool:
    return all(is_close(found, expected, call.tensor_type.dtype) for found, expected in pairs)


def _bases(mutator: FunctionMutator, argument: Expr, call: Expr) -> Iterator[Var]:
    """Yield the candidates for the activation's input: values of its type that the gate's argument is computed from."""
    inner, leaves = arithmetic_leaves(mutator, (argument,))
    return (var for var in inner + leaves if var.type == call.type)


def _mish(mutator: FunctionMutator, call: Call, gate: Var, inner: Call) -> Expr | None:
    """Compose x * tanh(softplus(x)) into mish."""
    softplus = defining_call(mutator, inner.args[0], "nn.softplus") if inner.op_name == "tanh" else None
    if softplus is None:
        return None
    x = softplus.args[0]
    outer = PolynomialReader(mutator, {x: "x", gate: "e"}).read_call(call)
    return make("nn.mish", x) if _agree(call, (outer, _PRODUCT)) else None


def _hard(mutator: FunctionMutator, call: Call, gate: Var, inner: Call) -> Expr | None:
    """Compose k * clip(a x + b, 0, 1 / k) into hard_sigmoid, its product with x into hard_swish."""
    for x, slope, offset, top in _ramps(mutator, inner):
        outer = PolynomialReader(mutator, {x: "x", gate: "e"}).read_call(call)
        for name, expected in (("nn.hard_swish", {("e", "x"): 1 / top}), ("nn.hard_sigmoid", {("e",): 1 / top})):
            if _agree(call, (outer, expected)):
                return make(name, x, alpha=_snap_to_usual(slope / top), beta=_snap_to_usual(offset / top))
    return None


def _ramps(mutator: FunctionMutator, inner: Call) -> Iterator[tuple[Expr, float, float, float]]:
    """Yield readings of a call as `clip(slope * x + offset, 0, top)`: x, slope, offset, top."""
    if inner.op_name == "nn.hard_sigmoid":
        yield inner.args[0], inner.attrs["alpha"], inner.attrs["beta"], 1.0
    if inner.op_name != "clip" or inner.attrs["min"] != 0.0 or not inner.attrs["max"] or inner.attrs["max"] < 0:
        return
    # The innermost base first, so that the whole line is absorbed.
    for x in reversed(list(_bases(mutator, inner.args[0], inner))):
        argument = PolynomialReader(mutator, {x: "x"}).read(inner.args[0])
        if argument is not None and ("x",) in argument and argument.keys() <= {("x",), ONE}:
            yield x, argument[("x",)], argument.get(ONE, 0.0), inner.attrs["max"]


_USUAL = (1 / 6, 0.2, 0.5, 1.0)


def _snap_to_usual(value: float) -> float:
    """Return a coefficient that is a usual one but for rounding, as that one."""
    return next((usual for usual in _USUAL if abs(value - usual) < 1e-6 * usual), value)


def _clip_of_line(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose clip(a x + b, 0, 1) into hard_sigmoid; clip(x, 0, 1) stays."""
    if call.attrs["max"] != 1.0:
        return None
    for x, slope, offset, _ in _ramps(mutator, call):
        if (slope, offset) != (1.0, 0.0):
            return make("nn.hard_sigmoid", x, alpha=_snap_to_usual(slope), beta=_snap_to_usual(offset))
    return None


# --- quotients and logarithms of 1 + exp and 1 + abs ------------------------------------------------------------------
def _match_one_plus(mutator: FunctionMutator, expr: Expr, op: str) -> Expr | None:
    """Return the operand of `op` in `1 + op(...)`; None where there is no such form."""
    value = mutator.value_of(expr)
    if not isinstance(value, Call) or value.op_name != "add":
        return None
    _, leaves = arithmetic_leaves(mutator, (expr,))
    for leaf in leaves:
        inner = defining_call(mutator, leaf, op)
        found = PolynomialReader(mutator, {leaf: "e"}).read(expr) if inner else None
        if inner and is_close(found, {("e",): 1.0, ONE: 1.0}, value.tensor_type.dtype):
            return inner.args[0]
    return None


def _sigmoid_argument(mutator: FunctionMutator, denominator: Expr) -> Expr | None:
    """Return x of the denominator `1 + exp(-x)`."""
    exponent = _match_one_plus(mutator, denominator, "exp")
    if exponent is None:
        return None
    for x in _bases(mutator, exponent, exponent):
        if is_close(PolynomialReader(mutator, {x: "x"}).read(exponent), {("x",): -1.0}, x.tensor_type.dtype):
            return x
    return None


def _reciprocal(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose 1 / (1 + exp(-x)) into sigmoid."""
    x = _sigmoid_argument(mutator, call.args[0])
    return None if x is None else make("sigmoid", x)


def _quotient(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose x / (1 + exp(-x)) into silu, other numerators into sigmoid; x / (1 + abs(x)) into softsign."""
    numerator, denominator = call.args
    if _match_one_plus(mutator, denominator, "abs") is numerator:
        return make("nn.softsign", numerator)
    x = _sigmoid_argument(mutator, denominator)
    if x is None or x.type != call.type:
        return None
    if x is numerator:
        return make("nn.silu", x)
    gate = make("sigmoid", x)
    return gate if is_uniform(numerator, 1) else make("multiply", numerator, mutator.emit(gate))


def _logarithm(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose log(1 + exp(x)) into softplus."""
    x = _match_one_plus(mutator, call.args[0], "exp")
    return None if x is None else make("nn.softplus", x)


def _logarithm_of_one_plus(mutator: FunctionMutator, call: Call) -> Expr | None:
    exponential = defining_call(mutator, call.args[0], "exp")
    return make("nn.softplus", exponential.args[0]) if exponential else None


_TABLE: dict[str, tuple[Callable[[FunctionMutator, Call], Expr | None], ...]] = {
    "multiply": (_compose_gate,),
    "divide": (_quotient, _compose_gate),
    "reciprocal": (_reciprocal,),
    "log": (_logarithm,),
    "log1p": (_logarithm_of_one_plus,),
    "clip": (_clip_of_line,),
}

ACTIVATION_RULES: dict[str, tuple[Rule, ...]] = {
    name: tuple(map(restrict_to_floats, rules)) for name, rules in _TABLE.items()
}
