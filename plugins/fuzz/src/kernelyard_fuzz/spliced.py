"""Oracle of patterns: what was built from a pattern is matched by it, and its match says what it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from kernelyard.ir import Call, Constant, Expr, Function, IRModule, Var
from kernelyard.patterns import Match, Matcher
from kernelyard.patterns.language.pattern import (
    AttrPattern,
    CallPattern,
    CapturePattern,
    ConstantPattern,
    DtypePattern,
    ExprPattern,
    OrPattern,
    Pattern,
    PredicatePattern,
    TupleGetItemPattern,
    VarPattern,
    WildcardPattern,
    WrapperPattern,
)
from kernelyard.patterns.language.pattern_parts import walk
from kernelyard_fuzz.errors import FoundError
from kernelyard_fuzz.sketch import Spliced, operands_of_value

MOST_WAYS = 64  # in which a pattern may match: operands in any order, alternatives
# Patterns that hold of what is built from them.
PLAIN = (CapturePattern, ExprPattern, OrPattern, TupleGetItemPattern, VarPattern, WildcardPattern)


def check_spliced(module: IRModule, spliced: Sequence[Spliced]) -> None:
    """Match what was built from patterns. Raises: FoundError."""
    main = module["main"]
    assert isinstance(main, Function)
    matcher = Matcher(main) if spliced else None
    values = {binding.var: binding.value for binding in main.bindings}
    for each in spliced:
        assert matcher is not None
        ways = list(islice(matcher.matches(each.pattern.pattern, each.root), MOST_WAYS))
        for way in ways[:1]:
            check_match(each.pattern.name, each.root, way, values)
        if len(ways) < MOST_WAYS and _holds(each, values) and not any(_is_as_built(each, way) for way in ways):
            raise FoundError("pattern", "values", f"{len(ways)} matches, none as it was built", each.pattern.name)


def _holds(spliced: Spliced, values: Mapping[Var, Expr]) -> bool:
    """Return True where what was built is all that its pattern asks for: no attribute came out another way."""
    for part in walk(spliced.pattern.pattern):
        made = spliced.parts.get(part, spliced.parts.get(_inner(part)))
        if made is not None and not _fits(part, made, values):
            return False
    return True


def _inner(part: Pattern) -> Pattern:
    while isinstance(part, WrapperPattern):
        part = part.pattern
    return part


def _fits(part: Pattern, made: Expr, values: Mapping[Var, Expr]) -> bool:
    value = values.get(made) if isinstance(made, Var) else None
    if isinstance(part, CallPattern):
        return isinstance(value, Call) and len(value.args) >= len(part.args)  # else it is one result of several
    if isinstance(part, ConstantPattern):
        return isinstance(made, Constant)  # else a value of the graph was at hand
    if isinstance(part, DtypePattern):
        return made.tensor_type.dtype in part.dtypes
    if isinstance(part, AttrPattern):
        return _has_attributes(value, part)
    if isinstance(part, PredicatePattern):
        return part.predicate(made)
    return isinstance(part, PLAIN)


def _has_attributes(value: Expr | None, part: AttrPattern) -> bool:
    if not isinstance(value, Call):
        return False
    return all(not callable(wanted) and value.attrs.get(name) == wanted for name, wanted in part.attrs)


def _is_as_built(spliced: Spliced, way: Match) -> bool:
    return all(way.values[part] is made for part, made in spliced.parts.items() if part in way.values)


def check_match(name: str, root: Var, match: Match, values: Mapping[Var, Expr]) -> None:
    """Compare what a match says of itself with what follows from its members. name: of the pattern.

    Raises: FoundError.
    """
    members = [binding.var for binding in match.bindings]
    calls = [value for var in members if isinstance(value := values[var], Call)]
    wanted = {
        "root": match.root is root and members[-1:] in ([root], []),
        "members": match.members == frozenset(members) and list(match.members_in_order) == members,
        "calls": list(match.calls) == calls and [each.value for each in match.call_bindings] == calls,
        "ops": list(match.ops) == [call.op_name for call in calls],
        "inputs": list(match.inputs) == _inputs(members, values),
        "captures": _captures_hold(match, calls, values),
        "call": not isinstance(values[match.root], Call) or match.call is values[match.root],
    }
    for part in (part for part, holds in wanted.items() if not holds):
        raise FoundError("pattern", "values", f"{part} of a match is wrong", name)


def _inputs(members: Sequence[Var], values: Mapping[Var, Expr]) -> list[Expr]:
    read = [operand for var in members for operand in operands_of_value(values[var])]
    return [operand for operand in dict.fromkeys(read) if operand not in members and _is_operand(operand)]


def _captures_hold(match: Match, calls: Sequence[Call], values: Mapping[Var, Expr]) -> bool:
    captured = [part.name for part in match.values if isinstance(part, CapturePattern)]
    if set(match.captures) != set(captured) or not all(name in match for name in captured):
        return False
    bound = {name: values.get(match[name]) for name in captured}  # pyright: ignore[reportArgumentType]
    return all(match.call_of(name) is value for name, value in bound.items() if value in calls)


def _is_operand(operand: Expr) -> bool:
    return isinstance(operand, (Var, Constant))
