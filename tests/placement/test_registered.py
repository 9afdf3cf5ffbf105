"""Patterns and rules that a script registers for a backend, offered beside the backend's own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ir.verify import verify
from kernelyard.patterns import (
    Accept,
    Decline,
    accept_all,
    is_op,
    register_op_rule,
    register_patterns,
    unregister_op_rules,
    unregister_patterns,
    wildcard,
)
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.testing.reference import assert_same_meaning

X = np.float32([0.5, -2])
TANH_RELU = is_op("nn.relu")(is_op("tanh")(wildcard()))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unregister_patterns("acme")
    unregister_op_rules("acme")


def network() -> IRModule:
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("tanh", b.op("exp", b.input("x", (2,)))))
    return verify(IRModule({"main": b.function(b.op("floor", y))}))


def composites(*own: str, **settings) -> list[str]:
    """The patterns that took something, in a program that computes the same."""
    module, acme = network(), InterpretedBackend("acme", own, merge_composites=False)
    placed = verify(partition(module, [acme], PlacementSettings(**settings)))
    assert_same_meaning(module, placed, [X])
    return [f.attrs["Composite"] for f in placed.graph_functions().values() if "Composite" in f.attrs]


def test_patterns_alone() -> None:
    assert composites() == []
    register_patterns([("acme.tanh_relu", TANH_RELU)])
    assert composites() == ["acme.tanh_relu"]


def test_rules_alone() -> None:
    register_op_rule("tanh", "acme", accept_all)
    register_op_rule("floor", "acme", accept_all)
    register_op_rule("exp", "other", accept_all)
    assert composites() == ["acme.rule.tanh", "acme.rule.floor"]


def test_patterns_come_first_and_rules_last() -> None:
    """A group rather than its parts; of two patterns of one operator, the script's."""
    for op in ("tanh", "nn.relu", "exp", "floor"):
        register_op_rule(op, "acme", accept_all)
    register_patterns([("acme.tanh_relu", TANH_RELU), ("acme.mine", is_op("floor")(wildcard()))])
    assert composites("floor", "exp") == ["acme.exp", "acme.tanh_relu", "acme.mine"]


def test_what_is_registered_can_be_excluded() -> None:
    register_op_rule("tanh", "acme", accept_all)
    register_patterns([("acme.tanh_relu", TANH_RELU)])
    assert composites(exclude_patterns=("acme.tanh_relu", "acme.rule.tanh")) == []


def test_reasons_of_rules_and_checks_are_reported() -> None:
    register_op_rule("tanh", "acme", lambda call: Decline("accuracy", "too coarse"))
    register_op_rule("exp", "acme", lambda call: call.no_such_attribute)
    register_patterns([("acme.floor", is_op("floor")(wildcard()), lambda match: Decline("slow", "rather not"))])
    recorder = Recorder()
    placed = partition(network(), [InterpretedBackend("acme", ["nn.relu"])], PlacementSettings(recorder=recorder))
    assert called(placed) == ["exp", "tanh", "@acme_0", "floor"]
    declined = {(each.pattern, each.code) for each in build_report(placed, recorder).declined}
    assert declined == {("acme.rule.tanh", "accuracy"), ("acme.rule.exp", "check-error"), ("acme.floor", "slow")}


def test_nothing_is_left_when_it_is_unregistered() -> None:
    register_op_rule("tanh", "acme", lambda call: Accept())
    register_patterns([("acme.tanh_relu", TANH_RELU)])
    unregister_op_rules("acme")
    unregister_patterns("acme")
    assert composites() == []
