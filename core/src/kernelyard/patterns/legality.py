"""Check the legality of a group before any backend's check: can these bindings become one function?"""

from __future__ import annotations

from kernelyard.ir.control_flow import is_control_flow
from kernelyard.ir.expr import Call, Constant, Var
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.registry import Decline

LEAKING_INTERMEDIATE = "leaking-intermediate"
CYCLE = "cycle"
IMPURE = "impure"
TUPLE_INPUT = "tuple-input"
CONTROL_FLOW = "control-flow"
OWN_SIZE = "own-size"


def check_legality(match: Match) -> Decline | None:
    """Return None when the match may become one function whose only result is its root; else why not.

    Codes: "leaking-intermediate" (a value inside is also used outside), "cycle" (and that use feeds the group again),
    "impure" (an op has effects), "tuple-input" (a whole tuple would cross the boundary), "control-flow" (a branch or a
    loop, which calls other functions), "own-size" (an op decides the size of its result, which the caller provides).
    """
    return _stays_outside(match) or _tuple_input(match) or _leak(match)


def leaking_intermediates(match: Match) -> tuple[Var, ...]:
    """Return the members other than the root that something outside the group reads or the function returns."""
    members, dataflow, root = match.members, match.dataflow, match.root
    return tuple(var for var in match.members_in_order if var is not root and dataflow.is_needed_outside(var, members))


def _stays_outside(match: Match) -> Decline | None:
    for binding in match.bindings:
        call = binding.value
        if not isinstance(call, Call) or not isinstance(call.op, Op):
            continue
        if not call.op.pure:
            return Decline(IMPURE, f"{call.op_name} has effects and must stay where it is", at=binding.var)
        if is_control_flow(call):
            return Decline(CONTROL_FLOW, f"{call.op_name} calls functions of the module", at=binding.var)
        if call.op.introduces_symbols:
            return Decline(OWN_SIZE, f"{call.op_name} has a result of data-dependent size", at=binding.var)
    return None


def _tuple_input(match: Match) -> Decline | None:
    for operand in match.inputs:
        if not isinstance(operand, Constant) and not isinstance(operand.type, TensorType):
            return Decline(TUPLE_INPUT, f"the group would take the whole tuple {operand!r} as an input", at=operand)
    return None


def _leak(match: Match) -> Decline | None:
    leaking = leaking_intermediates(match)
    if not leaking:
        return None
    for var in leaking:
        outside = [user for user in match.users(var) if user not in match.members]
        feeding = next((user for user in outside if _reaches_group(user, match)), None)
        if feeding is not None:
            message = f"{var!r} inside the group feeds {feeding!r} outside, which feeds the group again"
            return Decline(CYCLE, message, at=var)
    var = leaking[0]
    users = [repr(user) for user in match.users(var) if user not in match.members]
    by = ", ".join(users[:3]) if users else "the function's result"
    return Decline(LEAKING_INTERMEDIATE, f"{var!r} inside the group is also used by {by}", at=var)


def _reaches_group(start: Var, match: Match) -> bool:
    dataflow, last = match.dataflow, match.dataflow.position[match.root]
    seen: set[Var] = {start}
    pending = [start]
    while pending:
        for user in dataflow.users(pending.pop()):
            if user in match.members:
                return True
            if user not in seen and dataflow.position[user] < last:
                seen.add(user)
                pending.append(user)
    return False
