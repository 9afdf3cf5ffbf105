"""Single-op rules: may a backend take this one call? The short way to claim operators, without patterns.

A rule answers `Accept()` or `Decline(code, message)`, as the check of a pattern does. Placement asks a backend's rules
after its patterns; its codegen is handed what they accept as an operator by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from kernelyard.errors import PatternError
from kernelyard.ir import Call, get_op
from kernelyard.patterns.composite import SINGLE_OP
from kernelyard.patterns.language.constructors import is_op
from kernelyard.patterns.registry import Accept, Answer, Decline, FusionPattern

log = logging.getLogger(__name__)

OpRule: TypeAlias = Callable[[Call], Answer]

CHECK_ERROR = "check-error"
NO_RULE = Decline("no-rule", "the backend has no rule for this operator")

_RULES: dict[tuple[str, str], OpRule] = {}


def accept_all(call: Call) -> Answer:
    """Return the rule of an operator that a backend takes in every form."""
    return Accept()


def register_op_rule(op: str, target: str, rule: OpRule | None = None) -> Callable[[OpRule], OpRule]:
    """Say when the backend `target` takes calls of `op`: give the rule, or decorate it.

    Raises: UnknownOpError; PatternError when the backend has a rule for the operator already.

    Example:
        >>> import kernelyard.ops
        >>> @register_op_rule("nn.relu", "acme")
        ... def relu(call):
        ...     is_float = call.tensor_type.dtype == "float32"
        ...     return Accept() if is_float else Decline("dtype", "acme has float32 alone")
        >>> unregister_op_rules("acme")
    """
    get_op(op)
    if (op, target) in _RULES:
        raise PatternError(f"{target} has a rule for {op} already", hint="one rule for each operator of a backend")

    def register(given: OpRule) -> OpRule:
        _RULES[op, target] = given
        return given

    if rule is not None:
        register(rule)
    return register


def unregister_op_rules(target: str) -> None:
    """Forget a backend's rules."""
    for key in [key for key in _RULES if key[1] == target]:
        del _RULES[key]


def op_rule_pattern(op: str, target: str) -> FusionPattern:
    """Return the rule of a backend for an operator as a pattern: any call, and the rule as its check."""
    return FusionPattern(
        f"{target}.rule.{op}",
        is_op(op)(varargs=True),
        lambda match: ask_op_rule(match.call, target),
        lambda match: {SINGLE_OP: True},
    )


def op_rule_patterns(target: str) -> tuple[FusionPattern, ...]:
    """Return the rules of a backend as patterns, in order of registration."""
    return tuple(op_rule_pattern(op, backend) for op, backend in _RULES if backend == target)


def ask_op_rule(call: Call, target: str) -> Answer:
    """Return the answer of the `target`'s rule for a call; `NO_RULE` if it has none.

    A rule that raises, or answers something else, declines: it is a vendor's code.
    """
    rule = _RULES.get((call.op_name, target))
    if rule is None:
        return NO_RULE
    try:
        answer = rule(call)
    except Exception as error:  # a vendor's code
        log.warning("the rule of %s for %s failed", target, call.op_name, exc_info=True)
        return Decline(CHECK_ERROR, f"the rule of {target} for {call.op_name} failed: {error!r}")
    if isinstance(answer, (Accept, Decline)):
        return answer
    return Decline(
        CHECK_ERROR, f"the rule of {target} for {call.op_name} returned {answer!r}, which is neither Accept nor Decline"
    )
