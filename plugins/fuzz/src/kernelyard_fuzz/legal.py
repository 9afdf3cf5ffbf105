"""Oracle of legality: whether a match may become one function, as a plain search says."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from kernelyard.ir import Call, Expr, Function, Op, Tuple, Var
from kernelyard.ir.control_flow import is_control_flow
from kernelyard.ir.types import TensorType
from kernelyard.patterns import Match
from kernelyard.patterns.legality import (
    CONTROL_FLOW,
    CYCLE,
    IMPURE,
    LEAKING_INTERMEDIATE,
    OWN_SIZE,
    TUPLE_INPUT,
    check_legality,
)
from kernelyard_fuzz.errors import FoundError
from kernelyard_fuzz.sketch import operands_of_value


@dataclass(frozen=True)
class Uses:
    """Hold what reads each value of a function, and what the function returns. values: what each variable is."""

    values: Mapping[Var, Expr]
    readers: Mapping[Expr, Set[Var]]
    results: Set[Expr]

    @classmethod
    def of(cls, function: Function) -> Uses:
        """Return the uses of a function's values."""
        readers: dict[Expr, set[Var]] = {}
        for binding in function.bindings:
            for operand in operands_of_value(binding.value):
                readers.setdefault(operand, set()).add(binding.var)
        results = function.result.fields if isinstance(function.result, Tuple) else (function.result,)
        return cls({binding.var: binding.value for binding in function.bindings}, readers, frozenset(results))


def check_legal(name: str, match: Match, uses: Uses) -> None:
    """Compare the reason why a match is no function with what a plain search says. Raises: FoundError."""
    decline = check_legality(match)
    found = None if decline is None else decline.code
    wanted = _illegal(match, uses)
    if found != wanted:
        raise FoundError("legality", "values", f"{found or 'legal'} in place of {wanted or 'legal'}", name)


def _illegal(match: Match, uses: Uses) -> str | None:
    alone = next(filter(None, map(_alone, match.calls)), None)
    if alone is not None:
        return alone
    if any(isinstance(each, Var) and not isinstance(each.type, TensorType) for each in match.inputs):
        return TUPLE_INPUT
    inner = match.members - {match.root}
    outside = {reader for var in inner for reader in uses.readers.get(var, ())} - match.members
    if any(_reaches(reader, match.members, uses) for reader in outside):
        return CYCLE
    return LEAKING_INTERMEDIATE if outside or inner & uses.results else None


def _alone(call: Call) -> str | None:
    """Return why a call is in no group."""
    if not isinstance(call.op, Op):
        return None
    if not call.op.pure:
        return IMPURE
    if is_control_flow(call):
        return CONTROL_FLOW
    return OWN_SIZE if call.op.introduces_symbols else None


def _reaches(start: Var, members: Set[Var], uses: Uses) -> bool:
    """Return True where a member is computed from a value."""
    seen, waiting = {start}, [start]
    while waiting:
        following = set(uses.readers.get(waiting.pop(), ())) - seen
        if following & members:
            return True
        seen |= following
        waiting += following
    return False
