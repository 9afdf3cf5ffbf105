"""The prefilter rejects nothing that matches, and what it rejects lacks an op that the pattern needs."""

from __future__ import annotations

import random

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Function, FunctionBuilder
from kernelyard.patterns import Pattern, is_op, wildcard
from kernelyard.patterns.matching.matcher import Matcher
from kernelyard.patterns.matching.prefilter import Prefilter

UNARY = ("exp", "tanh", "floor", "ceil")


def chain(*ops: str) -> Function:
    b = FunctionBuilder()
    x = b.input("x", (2,))
    for op in ops:
        x = b.op(op, x)
    return b.function(x)


def answers(function: Function, *patterns: Pattern) -> list[bool]:
    prefilter = Prefilter(Matcher(function).dataflow, patterns)
    return [prefilter.may_match(pattern, function.bindings[-1].var) for pattern in patterns]


def test_needed_ops_are_looked_for_as_far_as_the_pattern_reaches() -> None:
    anchor = is_op("exp")(wildcard())
    follow = anchor.repeated(lambda p: is_op("floor", "ceil")(p), 2)
    assert answers(chain("exp", "floor", "ceil"), follow) == [True]
    assert answers(chain("exp", "tanh", "floor", "ceil"), follow) == [False]
    assert answers(chain("tanh", "floor"), follow, is_op("floor")(wildcard())) == [False, True]


def test_what_may_be_absent_is_not_asked_for() -> None:
    x = wildcard()
    either = is_op("floor")(is_op("exp")(x) | is_op("tanh")(x))
    neither = is_op("floor")(~is_op("exp")(x))
    assert answers(chain("ceil", "floor"), either, neither) == [True, True]


def test_whatever_matches_passes() -> None:
    rng = random.Random(0)

    def tree(depth: int) -> Pattern:
        if depth == 0 or rng.random() < 0.2:
            return wildcard()
        one = is_op(*rng.sample(UNARY, rng.randint(1, 3)))(tree(depth - 1))
        made = one | tree(depth - 1) if rng.random() < 0.3 else one
        return made.optional(lambda p: is_op(*UNARY[:2])(p)) if rng.random() < 0.3 else made

    for _ in range(300):
        function = chain(*rng.choices(UNARY, k=6))
        matcher = Matcher(function)
        patterns = [tree(rng.choice([2, 4, 20])) for _ in range(3)]
        prefilter = Prefilter(matcher.dataflow, patterns)
        for binding in function.bindings:
            for pattern in patterns:
                if matcher.match(pattern, binding.var) is not None:
                    assert prefilter.may_match(pattern, binding.var)
