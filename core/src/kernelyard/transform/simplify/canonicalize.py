"""Write the same computation in one way: identities go, equal spellings become one."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.op import Op
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import Rule
from kernelyard.transform.simplify.canonical_arithmetic import ARITHMETIC_RULES
from kernelyard.transform.simplify.canonical_shape import SHAPE_RULES

# How often one binding is rewritten at most; rules shrink or normalise, so this only guards against a wrong rule.
MAX_STEPS = 16


class Canonicalize(FunctionPass):
    """Apply the rules of `canonical_arithmetic` and `canonical_shape` until none fits.

    Every rule keeps the exact values, but for the sign of zeros (`x + 0` is `x`).
    """

    name = "canonicalize"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Canonicalizer().mutate(function)


def _merge(*tables: Mapping[str, tuple[Rule, ...]]) -> dict[str, tuple[Rule, ...]]:
    names = {name for table in tables for name in table}
    return {name: tuple(rule for table in tables for rule in table.get(name, ())) for name in names}


_RULES = _merge(ARITHMETIC_RULES, SHAPE_RULES)


class _Canonicalizer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            fields = self.value_of(value.tuple_value)
            return fields.fields[value.index] if isinstance(fields, Tuple) else value
        for _ in range(MAX_STEPS):
            new = self._step(value)
            if new is None:
                break
            value = new
        return value

    def _step(self, value: Expr) -> Expr | None:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return None
        for rule in _RULES.get(value.op.name, ()):
            new = rule(self, value)
            # Types are a promise to the readers of this value, so a rule that would change one does not apply.
            if new is not None and new.type == value.type:
                return new
        return None
