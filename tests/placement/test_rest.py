"""What no backend takes has an owner: a code generator, the reference interpreter, or nobody."""

from __future__ import annotations

import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, FunctionBuilder
from kernelyard.placement.rest import REFERENCE, Rest
from kernelyard.runtime.report_words import VIEW

ACME, NOBODY = Rest("acme"), Rest(None)


def call_of(op: str, **attributes: object) -> Call:
    b = FunctionBuilder()
    value = b.function(b.op(op, b.input("x", (2, 3)), **attributes)).bindings[-1].value
    assert isinstance(value, Call)
    return value


@pytest.mark.parametrize(
    ("call", "by_acme", "without"),
    [
        (call_of("exp"), "acme", REFERENCE),
        (call_of("reshape", shape=(6,)), VIEW, VIEW),
    ],
    ids=lambda value: value.op_name if isinstance(value, Call) else value,
)
def test_the_owner_of_a_call(call: Call, by_acme: str, without: str) -> None:
    assert ACME.owner(call) == by_acme
    assert NOBODY.owner(call) == without
