"""Rules by which a backend takes single operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelyard.errors import PatternError, UnknownOpError
from kernelyard.ir import Call, FunctionBuilder, get_op
from kernelyard.patterns import Accept, Decline
from kernelyard.patterns.op_rules import (
    CHECK_ERROR,
    NO_RULE,
    accept_all,
    ask_op_rule,
    register_op_rule,
    unregister_op_rules,
)


@pytest.fixture(autouse=True)
def _clean_rules() -> Iterator[None]:
    yield
    unregister_op_rules("acme")


def relu(dtype: str = "float32") -> Call:
    return Call(get_op("nn.relu"), [FunctionBuilder().input("x", (2,), dtype)])


def test_a_rule_answers_with_a_reason() -> None:
    @register_op_rule("nn.relu", "acme")
    def rule(call: Call) -> Accept | Decline:
        return Accept() if call.tensor_type.dtype == "float32" else Decline("dtype", "float32 alone")

    assert ask_op_rule(relu(), "acme") == Accept()
    assert ask_op_rule(relu("int32"), "acme") == Decline("dtype", "float32 alone")
    assert rule(relu()) == Accept()


def test_no_rule_is_an_answer_too() -> None:
    assert ask_op_rule(relu(), "acme") is NO_RULE
    register_op_rule("nn.relu", "acme", accept_all)
    assert ask_op_rule(relu(), "other") is NO_RULE


@pytest.mark.parametrize("wrong", [lambda call: call.no_such_attribute, lambda call: True, lambda call: None])
def test_a_broken_rule_declines(wrong) -> None:
    """Guards against a defect of TVM: an exception in a check aborted the whole partition."""
    register_op_rule("nn.relu", "acme", wrong)
    answer = ask_op_rule(relu(), "acme")
    assert isinstance(answer, Decline)
    assert answer.code == CHECK_ERROR


def test_one_rule_for_each_operator() -> None:
    register_op_rule("nn.relu", "acme", accept_all)
    with pytest.raises(PatternError, match="already"):
        register_op_rule("nn.relu", "acme", accept_all)
    with pytest.raises(UnknownOpError):
        register_op_rule("nn.rely", "acme")
