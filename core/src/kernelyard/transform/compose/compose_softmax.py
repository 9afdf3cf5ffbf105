"""Compose decomposed softmax and log-softmax, with or without the maximum subtracted."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, FunctionMutator
from kernelyard.transform.compose.compose_norms import is_aligned, keepdims_shapes, skip_reshapes
from kernelyard.transform.pass_infra.rewrite_rule import Rule, defining_call, make, restrict_to_floats


def _reduction(mutator: FunctionMutator, expr: Expr, op: str, of: Expr, axis: int | None = None) -> int | None:
    """Return the axis over which `expr` reduces `of`, kept, or dropped and brought back; None where it does not."""
    shape = of.tensor_type.shape
    for candidate in range(len(shape)) if axis is None else (axis,):
        if not is_aligned(expr.tensor_type.shape, shape, (candidate,)):
            continue
        call = defining_call(mutator, skip_reshapes(mutator, expr, keepdims_shapes(shape, (candidate,))), op)
        if call is not None and call.args[0] is of and call.attrs["axes"] == (candidate,):
            return candidate
    return None


def _exponential_share(mutator: FunctionMutator, share: Expr, total: Expr) -> tuple[Expr, int] | None:
    """Return x and the axis where `share` is exp(x - anything per slice) and `total` its sum."""
    exponential = defining_call(mutator, share, "exp")
    axis = _reduction(mutator, total, "sum", share) if exponential else None
    if exponential is None or axis is None:
        return None
    return _match_shift_by_max(mutator, exponential.args[0], axis), axis


def _match_shift_by_max(mutator: FunctionMutator, shifted: Expr, axis: int) -> Expr:
    """Return x of `x - max(x)`; softmax subtracts the maximum itself."""
    difference = defining_call(mutator, shifted, "subtract")
    if difference is None or difference.args[0].type != shifted.type:
        return shifted
    x, largest = difference.args
    return x if _reduction(mutator, largest, "max", x, axis) is not None else shifted


def _quotient(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose exp(x - max) / sum(exp(x - max)) into softmax."""
    found = _exponential_share(mutator, *call.args)
    return make("nn.softmax", found[0], axis=found[1]) if found else None


def _product(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose exp(x - max) * (1 / sum(exp(x - max))) into softmax."""
    for share, inverse in (call.args, call.args[::-1]):
        reciprocal = defining_call(mutator, inverse, "reciprocal")
        found = _exponential_share(mutator, share, reciprocal.args[0]) if reciprocal else None
        if found:
            return make("nn.softmax", found[0], axis=found[1])
    return None


def _logarithm(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose log(softmax(x)) into log_softmax."""
    softmax = defining_call(mutator, call.args[0], "nn.softmax")
    return make("nn.log_softmax", softmax.args[0], axis=softmax.attrs["axis"]) if softmax else None


def _difference(mutator: FunctionMutator, call: Call) -> Expr | None:
    """Compose (x - max) - log(sum(exp(x - max))) into log_softmax."""
    shifted, total = call.args
    for axis in range(call.tensor_type.rank):
        shapes = keepdims_shapes(shifted.tensor_type.shape, (axis,))
        if not is_aligned(total.tensor_type.shape, shifted.tensor_type.shape, (axis,)):
            continue
        logarithm = defining_call(mutator, skip_reshapes(mutator, total, shapes), "log")
        if logarithm is None:
            continue
        sum_ = defining_call(mutator, skip_reshapes(mutator, logarithm.args[0], shapes), "sum")
        exponential = defining_call(mutator, sum_.args[0], "exp") if sum_ else None
        if sum_ and exponential and exponential.args[0] is shifted and sum_.attrs["axes"] == (axis,):
            return make("nn.log_softmax", _match_shift_by_max(mutator, shifted, axis), axis=axis)
    return None


_TABLE: dict[str, Rule] = {"divide": _quotient, "multiply": _product, "log": _logarithm, "subtract": _difference}
SOFTMAX_RULES: dict[str, tuple[Rule, ...]] = {name: (restrict_to_floats(rule),) for name, rule in _TABLE.items()}
