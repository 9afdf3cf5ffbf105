"""Who gets what a backend accepts, and in which order they are asked."""

from __future__ import annotations

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.patterns import Accept, FusionPattern, Match, is_op, wildcard
from kernelyard.patterns.cost import Cost
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.policy import Assigned, LeastCost, TakeAll, node_key, order_backends
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.target import Target
from kernelyard.testing.reference import assert_same_meaning

PRIORITIES = {"cublas": 10, "cudnn": 20, "cutlass": 10}
X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
SHIFTED = FusionPattern("acme.shifted", is_op("add")(is_op("tanh")(wildcard()), wildcard()))
WHOLE = ["@acme_0", "floor", "@acme_1"]


def test_by_priority_then_name() -> None:
    assert order_backends(PRIORITIES) == ("cudnn", "cublas", "cutlass")


def test_who_states_costs_comes_before_who_does_not() -> None:
    assert order_backends({**PRIORITIES, "stranger": 1_000_000}, with_costs=list(PRIORITIES))[-1] == "stranger"


def test_the_users_list_comes_as_it_stands() -> None:
    assert order_backends(PRIORITIES, ["cutlass", "cudnn"]) == ("cutlass", "cudnn")
    assert order_backends(PRIORITIES, []) == ()


def network() -> IRModule:
    """relu(x @ w), floor, and then relu and tanh + x: two regions."""
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    y = b.op("floor", b.op("nn.relu", b.op("matmul", x, X)))
    z = b.op("nn.relu", y)
    return verify(IRModule({"main": b.function(b.op("add", b.op("tanh", z), x))}))


class Costed(InterpretedBackend):
    """Takes matmul, relu and tanh + x; a region of these for `region`, each match for `match`."""

    def __init__(self, match: Cost | None, region: Cost | None) -> None:
        self.match = match
        self.region = region
        shifted = FusionPattern(SHIFTED.name, SHIFTED.pattern, self._check)
        super().__init__("acme", ["matmul", "nn.relu"], [shifted])

    def _check(self, match):
        return Accept(self.match)

    def check_region(self, region):
        return Accept(self.region)


class Generator(CodeGenerator):
    """Takes 1 us for a match that ends in add and for a region without a product, and 3 us for others."""

    name = "generator"
    targets = ("cpu",)

    def __init__(self, is_sure=True, failure=None):
        self.is_sure, self.failure = is_sure, failure

    def cost(self, work, target):
        if self.failure is not None:
            raise self.failure
        is_quick = work.call.op_name == "add" if isinstance(work, Match) else "matmul" not in work.ops
        return Cost(1e-6 if is_quick else 3e-6, self.is_sure)

    def generate(self, functions, target, options):
        raise AssertionError("nobody generates here")


def placed(backend, generator):
    recorder = Recorder()
    settings = PlacementSettings(recorder=recorder, policy=LeastCost(generator, Target("cpu")))
    after = verify(partition(network(), [backend], settings))
    assert_same_meaning(network(), after, [X])
    return called(after), {(d.pattern, d.code) for d in build_report(after, recorder).declined}, recorder


TWO = Cost(2e-6, is_sure=True, reason="twice through memory")


def test_the_code_generator_gets_regions_that_it_expects_to_be_quicker_with() -> None:
    calls, declined, recorder = placed(Costed(Cost(0.0), TWO), Generator())
    assert calls == ["@acme_0", "floor", "nn.relu", "tanh", "add"]
    assert {code for _, code in declined} == {"generated"}
    assert "generator expects to be faster: twice through memory" in {
        d.message for d in recorder.list_declined_matches()
    }


def test_the_code_generator_gets_single_matches_too() -> None:
    calls, declined, _ = placed(Costed(TWO, Cost(0.0)), Generator())
    assert calls == ["@acme_0", "floor", "nn.relu", "tanh", "add"]
    assert declined == {("acme.shifted", "generated"), ("acme.nn.relu", "generated")}


def test_who_states_no_cost_displaces_nobody_who_does() -> None:
    calls, declined, _ = placed(Costed(None, None), Generator(is_sure=False))
    assert calls == ["matmul", "nn.relu", "floor", "nn.relu", "tanh", "add"]
    assert {code for _, code in declined} == {"unmeasured"}


def test_who_would_rather_yield_gives_way_to_a_sure_estimate() -> None:
    unsure = Cost(reason="never tried")
    assert placed(Costed(unsure, unsure), Generator())[0][0] == "matmul"
    assert placed(Costed(unsure, unsure), Generator(is_sure=False))[0] == WHOLE


@pytest.mark.parametrize("generator", [Generator(is_sure=False), Generator(failure=RuntimeError("lost"))])
def test_a_guess_and_a_failure_claim_nothing(generator: Generator) -> None:
    assert placed(Costed(TWO, TWO), generator)[0] == WHOLE


def test_backends_that_are_named_get_all() -> None:
    assert called(verify(partition(network(), [Costed(None, None)], PlacementSettings(policy=TakeAll())))) == WHOLE


def test_an_assignment_gives_each_backend_its_own() -> None:
    module = network()
    keys = [node_key(binding.var, binding.value) for binding in module["main"].bindings]
    assert len(set(keys)) == len(keys)
    policy = Assigned({keys[0]: "acme", keys[1]: "acme", keys[3]: "other"})
    others = InterpretedBackend("other", ["nn.relu", "matmul"])
    after = verify(partition(module, [Costed(None, None), others], PlacementSettings(policy=policy)))
    assert called(after) == ["@acme_0", "floor", "@other_0", "tanh", "add"]
    assert_same_meaning(module, after, [X])
