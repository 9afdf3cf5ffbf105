"""Regions that a backend declines as a whole: their operators are plain again, with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.errors import PluginContractError
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.patterns import Accept, Decline, FusionPattern, is_op, wildcard
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.testing.reference import assert_same_meaning

X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
SHIFTED = FusionPattern("acme.shifted", is_op("add")(is_op("tanh")(wildcard()), wildcard()))


class Choosy(InterpretedBackend):
    """Takes matmul, relu and tanh + x, and regions that have a product."""

    def __init__(self, answer=None):
        super().__init__("acme", ["matmul", "nn.relu"], [SHIFTED])
        self.answer = answer
        self.asked = []

    def check_region(self, region):
        self.asked.append(region.ops)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        return Accept() if "matmul" in region.ops else Decline("light", f"nothing but {', '.join(region.ops)}")


def network():
    """relu(x @ w), floor, and then relu and tanh + x: two regions."""
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    y = b.op("floor", b.op("nn.relu", b.op("matmul", x, X)))
    z = b.op("nn.relu", y)
    return verify(IRModule({"main": b.function(b.op("add", b.op("tanh", z), x))}))


def test_what_is_declined_is_plain_again():
    module, backend, recorder = network(), Choosy(), Recorder()
    after = verify(partition(module, [backend], PlacementSettings(recorder=recorder)))
    assert backend.asked == [("matmul", "nn.relu"), ("nn.relu", "tanh", "add")]
    assert called(after) == ["@acme_0", "floor", "nn.relu", "tanh", "add"]
    assert_same_meaning(module, after, [X])
    assert len(after.functions) == 4, "composites that nobody calls any more are gone"
    report = build_report(after, recorder)
    assert [node.backend for node in report.nodes] == ["acme", "acme"] + ["rest"] * 4
    assert [(d.pattern, d.code, d.taken_by) for d in report.declined] == [
        ("acme.nn.relu", "light", ""),
        ("acme.shifted", "light", ""),
    ]
    assert report.nodes[-1].reasons[0].message == "nothing but nn.relu, tanh, add"


class Small(InterpretedBackend):
    """Has memory for so many kernels in a region."""

    def __init__(self, most):
        super().__init__("acme", ["nn.relu", "tanh", "split"])
        self.most = most

    def check_region(self, region):
        if len(region.composites()) <= self.most:
            return Accept()
        return Decline("memory", f"{len(region.composites())} kernels, there is room for {self.most}", divide=True)


@pytest.mark.parametrize(("most", "kernels"), [(4, [4]), (3, [2, 2]), (1, [1, 1, 1, 1]), (0, [])])
def test_what_is_too_large_is_divided(most, kernels):
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    for op in ("nn.relu", "tanh", "nn.relu", "tanh"):
        x = b.op(op, x)
    module, recorder = IRModule({"main": b.function(x)}), Recorder()
    after = verify(partition(module, [Small(most)], PlacementSettings(recorder=recorder)))
    regions = [after[name.removeprefix("@")] for name in called(after) if name.startswith("@acme")]
    assert [len(region.bindings) for region in regions] == kernels
    assert_same_meaning(module, after, [X])
    declined = build_report(after, recorder).declined
    assert len(declined) == (0 if kernels else 4)
    assert {each.code for each in declined} <= {"memory"}


def test_a_tuple_stays_with_its_items_where_a_region_is_divided():
    b = FunctionBuilder()
    parts = b.op("split", b.input("x", X.shape), axis=0, sections=(1, 3))
    module = IRModule({"main": b.function(b.op("nn.relu", b.get(parts, 0)), b.op("tanh", b.get(parts, 1)))})
    for most in (1, 2, 3):
        assert_same_meaning(module, verify(partition(module, [Small(most)])), [X])


def test_later_backends_are_offered_what_was_declined():
    module, recorder = network(), Recorder()
    other = InterpretedBackend("other", ["nn.relu", "tanh", "add"])
    after = verify(partition(module, [Choosy(), other], PlacementSettings(recorder=recorder)))
    assert called(after) == ["@acme_0", "floor", "@other_0"]
    assert_same_meaning(module, after, [X])
    report = build_report(after, recorder)
    assert [node.backend for node in report.nodes if node.op != "floor"] == ["acme"] * 2 + ["other"] * 3
    assert [d.taken_by for d in report.declined if d.code == "light"] == ["other", "other"]


def test_equal_regions_are_declined_one_by_one():
    b = FunctionBuilder()
    x = b.input("x", (4,))
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("floor", b.op("nn.relu", x))))})
    after = verify(partition(module, [Choosy()]))
    assert called(after) == ["nn.relu", "floor", "nn.relu"]
    assert list(after.functions) == ["main"]
    assert after["main"].params == module["main"].params


@pytest.mark.parametrize("answer", [ZeroDivisionError("no time"), True, "yes"], ids=repr)
def test_a_check_that_fails_declines_its_region_and_is_a_violation(answer):
    module, recorder = network(), Recorder()
    after = verify(partition(module, [Choosy(answer)], PlacementSettings(recorder=recorder)))
    assert not any(name.startswith("@acme") for name in called(after))
    assert_same_meaning(module, after, [X])
    assert {d.code for d in recorder.list_declined_matches()} == {"check-error"}
    assert "the check of a region by acme failed" in recorder.violations[0].message
    with pytest.raises(PluginContractError, match="the check of a region by acme failed"):
        partition(module, [Choosy(answer)], PlacementSettings(strict=True))


def test_backends_that_merge_nothing_are_not_asked():
    backend = Choosy(Decline("light", "never"))
    backend.merge_composites = False
    after = partition(network(), [backend])
    assert backend.asked == []
    assert called(after)[0].startswith("@acme")
