"""Compose operators that a model has decomposed into simpler ones, so that backends and kernels see them whole."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.ir.op import Op
from kernelyard.ir.visitor import read_once
from kernelyard.transform.compose.compose_activations import ACTIVATION_RULES
from kernelyard.transform.compose.compose_norms import absorb_affine, normalization, scale_and_offset
from kernelyard.transform.compose.compose_softmax import SOFTMAX_RULES
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import Rule


class ComposeOps(FunctionPass):
    """Replace decomposed operators by the operator: gelu (erf and tanh), silu, mish, hard_swish, hard_sigmoid,
    sigmoid, softplus, softsign, softmax, log_softmax, layer_norm and rms_norm.

    Runs after canonicalize, fold_constants and eliminate_common_subexpr, whose forms it expects; the parts that nobody
    reads any more are left to dead_code_elimination. What is recognised is equal in exact arithmetic, with constants
    taken to mean the exact ones when they agree with these to the digits that models are written with.
    """

    name = "compose_ops"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Composer(function).mutate(function)


_NORMALIZATIONS: dict[str, Rule] = {
    "multiply": normalization,
    "divide": normalization,
    "add": scale_and_offset,
}
_AFFINE_ROOTS = ("multiply", "add")


class _Composer(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        for rule in self._rules(value.op.name):
            composed = rule(self, value)
            if composed is not None and composed.type == value.type:
                return composed
        return value

    def _rules(self, name: str) -> list[Rule]:
        rules: list[Rule] = [*SOFTMAX_RULES.get(name, ())]
        if name in _AFFINE_ROOTS:
            rules.append(lambda mutator, call: absorb_affine(mutator, call, self._read_once))
        if name in _NORMALIZATIONS:
            rules.append(_NORMALIZATIONS[name])
        return [*rules, *ACTIVATION_RULES.get(name, ())]
