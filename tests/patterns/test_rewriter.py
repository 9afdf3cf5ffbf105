"""Rewriting by pattern: fixpoints, shared values, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.errors import PatternError
from kernelyard.ir import Call, Constant, Function, FunctionBuilder, IRModule, Op, get_op
from kernelyard.ir.verify import verify
from kernelyard.patterns import is_op, wildcard
from kernelyard.patterns.rewriting.rewriter import RewriteRule, rewrite
from kernelyard.testing import strategies
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import RandomProgram


def ops(function: Function) -> list[str]:
    return [binding.value.op_name for binding in function.bindings if isinstance(binding.value, Call)]


def call(op: str, *args: Any, **attrs: Any) -> Call:
    return Call(get_op(op), args, attrs)


def silu_rule() -> RewriteRule:
    x = wildcard()
    pattern = is_op("multiply")(x.capture("x"), is_op("sigmoid")(x))
    return RewriteRule(pattern, lambda match, emit: call("nn.silu", match["x"]))


DOUBLE_NEGATIVE = RewriteRule(
    is_op("negative")(is_op("negative")(wildcard().capture("x"))), lambda match, emit: match["x"]
)


def test_a_match_is_replaced_and_its_dead_parts_go() -> None:
    b = FunctionBuilder()
    x = b.input("x", (3,))
    f = rewrite(b.function(b.op("tanh", b.op("multiply", x, b.op("sigmoid", x)))), [silu_rule()])
    assert ops(f) == ["nn.silu", "tanh"]


def test_parts_that_are_used_elsewhere_stay() -> None:
    b = FunctionBuilder()
    x = b.input("x", (3,))
    s = b.op("sigmoid", x)
    f = rewrite(b.function(b.op("multiply", x, s), s), [silu_rule()])
    assert ops(f) == ["sigmoid", "nn.silu"]


def test_rules_apply_until_none_does() -> None:
    b = FunctionBuilder()
    y = x = b.input("x", (3,))
    for _ in range(6):
        y = b.op("negative", y)
    before = b.function(b.op("tanh", y), y)
    after = rewrite(before, [DOUBLE_NEGATIVE])
    assert ops(after) == ["tanh"]
    assert after.result.fields[1] is x
    module = IRModule({"main": before})
    assert_same_meaning(module, verify(IRModule({"main": after})), [np.float32([1, -2, 3])])


def test_nothing_to_rewrite_returns_the_same_function() -> None:
    b = FunctionBuilder()
    f = b.function(b.op("tanh", b.input("x", (3,))))
    assert rewrite(f, [silu_rule(), DOUBLE_NEGATIVE]) is f


def test_a_rule_may_leave_a_match_alone_and_emit_several_values() -> None:
    b = FunctionBuilder()
    f = b.function(b.op("tanh", b.input("x", (3,))), b.op("tanh", b.input("y", (4,))))

    def replace(match: Any, emit: Any) -> Call | None:
        if match.root.tensor_type.shape == (4,):
            return None
        return call("exp", emit(call("sin", emit(call("cos", match.call.args[0])))))

    assert ops(rewrite(f, [RewriteRule(is_op("tanh")(wildcard()), replace)])) == ["cos", "sin", "exp", "tanh"]


def test_the_first_rule_wins() -> None:
    b = FunctionBuilder()
    f = b.function(b.op("tanh", b.input("x", (3,))))
    rules = [
        RewriteRule(is_op("tanh")(wildcard()), lambda match, emit: call("sin", *match.call.args)),
        RewriteRule(is_op("tanh")(wildcard()), lambda match, emit: call("cos", *match.call.args)),
    ]
    assert ops(rewrite(f, rules)) == ["sin"]


def test_ops_with_effects_are_not_rewritten() -> None:
    b = FunctionBuilder()
    f = b.function(b.op("negative", b.op("random.uniform", shape=(3,))))
    rule = RewriteRule(is_op("negative")(is_op("random.uniform")()), lambda match, emit: Constant(np.zeros(3, "f4")))
    assert rewrite(f, [rule]) is f


def test_a_rule_that_changes_the_type_is_refused() -> None:
    b = FunctionBuilder()
    f = b.function(b.op("tanh", b.input("x", (3,))))
    rule = RewriteRule(is_op("tanh")(wildcard()), lambda match, emit: call("reshape", *match.call.args, shape=(3, 1)))
    with pytest.raises(PatternError, match="changes the type"):
        rewrite(f, [rule])


def test_rules_that_never_end_are_stopped() -> None:
    b = FunctionBuilder()
    f = b.function(b.op("tanh", b.input("x", (3,))))
    other = {"tanh": "sin", "sin": "tanh"}
    rule = RewriteRule(is_op(*other)(wildcard()), lambda match, emit: call(other[match.call.op_name], *match.call.args))
    with pytest.raises(PatternError, match="still apply"):
        rewrite(f, [rule])


@settings(max_examples=60, deadline=None)
@given(strategies.modules(max_ops=12))
def test_rewriting_keeps_the_meaning_of_random_programs(program: RandomProgram) -> None:
    twice = wildcard()
    rules = [
        silu_rule(),
        DOUBLE_NEGATIVE,
        RewriteRule(
            is_op("subtract")(wildcard().capture("x"), wildcard().capture("y")),
            lambda match, emit: call("add", match["x"], emit(call("negative", match["y"]))),
        ),
        RewriteRule(is_op("maximum", "minimum")(twice.capture("x"), twice), lambda match, emit: match["x"]),
    ]
    after = IRModule({"main": rewrite(program.module.graph_functions()["main"], rules)})
    verify(after)
    assert_same_meaning(program.module, after, program.inputs)


def test_calls_of_functions_are_looked_into_for_effects() -> None:
    """What cannot be looked into counts as having effects: nothing is matched across it."""
    noisy = Op("test.noisy", ("x",), lambda types, attrs: types[0], pure=False)

    def called(value: Any) -> Function:
        inner = FunctionBuilder()
        return inner.function(inner.bind(value(inner.input("x", (3,)))))

    b = FunctionBuilder()
    x = b.input("x", (3,))
    s = b.op("sigmoid", x)
    f = b.function(b.call_function("inner", [s], x.type), b.op("multiply", x, s))
    quiet = IRModule({"main": f, "inner": called(lambda y: call("tanh", y))})
    loud = quiet.with_functions({"inner": called(lambda y: Call(noisy, [y]))})
    assert ops(rewrite(f, [silu_rule()], quiet)) == ["sigmoid", "inner", "nn.silu"]
    assert rewrite(f, [silu_rule()], loud) is f
    assert rewrite(f, [silu_rule()]) is f
