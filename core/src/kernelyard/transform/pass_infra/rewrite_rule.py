"""Define canonicalization rules, and queries on their operands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr, FunctionMutator, Op, TensorType, Var, get_op

# A rule gets the mutator (for `value_of`) and a call; it answers with an expression that replaces the call, or None.
Rule: TypeAlias = Callable[[FunctionMutator, Call], "Expr | None"]

UNIFORM_LIMIT = 1 << 16


def make(op: str, *operands: Expr, **attrs: Any) -> Call:
    """Return a call of an op by name."""
    return Call(get_op(op), operands, attrs)


def is_tensor_operator(value: Expr) -> TypeGuard[Call]:
    """Return True for a call of an operator whose result is one tensor."""
    return isinstance(value, Call) and isinstance(value.op, Op) and isinstance(value.type, TensorType)


def defining_call(mutator: FunctionMutator, expr: Expr, *ops: str) -> Call | None:
    """Return the call that an operand is bound to, when it is a call of one of `ops`."""
    value = mutator.value_of(expr)
    return value if isinstance(value, Call) and value.op_name in ops else None


def find_one_use_call(mutator: FunctionMutator, expr: Expr, read_once: Collection[Var]) -> Call | None:
    """Return the call that an operand is bound to, if the operand is among the variables that are `read_once`."""
    value = mutator.value_of(expr)
    return value if isinstance(value, Call) and expr in read_once else None


def uniform_value(expr: Expr) -> np.generic | None:
    """Return the value of a constant whose elements are all the same, in its own dtype; None for everything else."""
    if not isinstance(expr, Constant) or not 0 < expr.data.size <= UNIFORM_LIMIT:
        return None
    first = expr.data.reshape(-1)[0]
    # Bytes, because 0.0 == -0.0, and a quotient of them has another sign.
    return first if expr.data.size == 1 or expr.data.tobytes() == first.tobytes() * expr.data.size else None


def is_uniform(expr: Expr, value: float) -> bool:
    """Return True for a constant whose elements are all `value`."""
    found = uniform_value(expr)
    return found is not None and bool(found == value)


def restrict_to_floats(rule: Rule) -> Rule:
    """Return a rule for calls that give floats, and no others."""

    def rewrite_floats(mutator: FunctionMutator, call: Call) -> Expr | None:
        return rule(mutator, call) if dtypes.is_float(call.tensor_type.dtype) else None

    return rewrite_floats
