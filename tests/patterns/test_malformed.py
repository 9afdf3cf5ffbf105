"""Patterns that can never match are refused where they are written, and calls of any operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelyard.errors import KernelyardError, PatternError, UnknownOpError
from kernelyard.ir import FunctionBuilder
from kernelyard.patterns import FusionPattern, is_const, is_op, match, matches, op, register_patterns, trace, wildcard
from kernelyard.patterns.matching.dataflow import Dataflow
from kernelyard.patterns.matching.feasibility import Feasibility
from kernelyard.patterns.matching.near_miss import NearMisses

ANY = wildcard()
CONV = is_op("nn.conv2d")(ANY, wildcard())

NEVER: dict[str, tuple[type[KernelyardError], str, Callable[[], object]]] = {
    "no such operator": (UnknownOpError, "'nn.conv2d'", lambda: is_op("nn.conv2")),
    "one of two is no operator": (UnknownOpError, "'nn.gelu'", lambda: is_op("nn.relu", "nn.gelo")),
    "no such operator, traced": (UnknownOpError, "'nn.relu'", lambda: trace(lambda x: op.nn.relo(x))),
    "too many operands": (PatternError, "1 of nn.relu", lambda: is_op("nn.relu")(ANY, ANY)),
    "too few operands": (PatternError, "varargs=True", lambda: is_op("add", "subtract")(ANY)),
    "too many operands, others free": (PatternError, "2 of add", lambda: is_op("add")(ANY, ANY, ANY, varargs=True)),
    "no such attribute": (PatternError, "strides", lambda: CONV.has_attr(stride=(2, 2))),
    "no such attribute below": (PatternError, "strides", lambda: CONV.capture("y").has_attr(groups=1, stride=(2, 2))),
    "no call": (PatternError, "acme.any matches no call", lambda: FusionPattern("acme.any", wildcard())),
    "no call, registered": (PatternError, "a constant", lambda: register_patterns([("acme.weight", is_const())])),
    "two operators at once": (
        PatternError,
        "matches no call",
        lambda: register_patterns([("acme.both", is_op("exp")(ANY) & is_op("tanh")(ANY))]),
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_a_pattern_that_can_never_match(name: str) -> None:
    class_, text, declare = NEVER[name]
    with pytest.raises(class_) as error:
        declare()
    assert text in str(error.value)
    assert f"[{class_.code}]" in str(error.value)


@pytest.mark.parametrize(
    "pattern",
    [
        is_op("add", "nn.relu")(wildcard()),  # one of them has one operand
        is_op("concat")(wildcard(), wildcard(), wildcard()),
        is_op("nn.conv2d", "nn.max_pool2d")(wildcard(), varargs=True).has_attr(groups=1),
        wildcard()(wildcard()).has_attr(anything=1),
    ],
)
def test_patterns_that_may_match_are_not_refused(pattern: object) -> None:
    assert FusionPattern("acme.some", pattern).pattern is pattern  # pyright: ignore[reportArgumentType]


# --- calls of any operator --------------------------------------------------------------------------------------------
def test_a_called_wildcard_is_any_operator_with_these_operands() -> None:
    b = FunctionBuilder()
    x, y = b.input("x", (2,)), b.input("y", (2,))
    e = b.op("exp", x)
    chosen = b.op("where", b.op("less", x, y), y, e)
    f = b.function(chosen, b.op("subtract", e, y))
    exp = is_op("exp")(wildcard())
    assert [match(wildcard()(exp), value, f) is not None for value in (e, chosen, f.result.fields[1])] == [False, True, True]  # fmt: skip
    assert match(wildcard()(exp, varargs=False), chosen, f) is None
    assert match(wildcard()(exp, wildcard()), chosen, f) is None, "the operands are in the order that is given"
    found = match(wildcard()(is_op("less")(wildcard(), wildcard()), exp), chosen, f)
    assert found is not None
    assert found.ops == ("exp", "less", "where")


def test_operands_of_commutative_operators_in_either_order() -> None:
    b = FunctionBuilder()
    x = b.input("x", (2,))
    total = b.op("add", b.op("tanh", x), b.op("exp", x))
    pattern = wildcard()(is_op("exp")(wildcard()), is_op("tanh")(wildcard()))
    assert len(list(matches(pattern, total, b.function(total)))) == 1


def test_a_near_miss_says_what_was_asked_for() -> None:
    b = FunctionBuilder()
    y = b.op("exp", b.input("x", (2,)))
    miss = NearMisses(Feasibility(Dataflow.of(b.function(y)))).find(is_op("exp")(wildcard()(wildcard())), y)
    assert str(miss) == "operand 0 of exp: expected any operator, found %x"
