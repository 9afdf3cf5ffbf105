"""Regions whose borders are reordered: they are generated where that takes longer than the region gains."""

from __future__ import annotations

import numpy as np
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import FunctionBuilder, IRModule, verify
from kernelyard.patterns import Accept, FusionPattern, is_op, wildcard
from kernelyard.patterns.cost import Cost
from kernelyard.placement.partition import partition
from kernelyard.placement.policy import LeastCost, TakeAll
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.plugins.support.roofline import BYTES_PER_SECOND
from kernelyard.target import Target
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.layout.border_agreement import BorderLayouts

X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 4, 2, 2)
LAST = (0, 2, 3, 1)
REORDER = X.nbytes / BYTES_PER_SECOND
POOLING = is_op("nn.max_pool2d")(wildcard())


class Backend(InterpretedBackend):
    """Takes poolings in no time, and wants all images channels-last. failure: of that question."""

    def __init__(self, failure: Exception | None = None) -> None:
        free = Accept(Cost(0.0, is_sure=True))
        super().__init__("acme", patterns=[FusionPattern("acme.pool", POOLING, lambda match: free)])
        self.failure = failure

    def check_region(self, region):
        return Accept(Cost(0.0, is_sure=True))

    def border_layouts(self, region):
        if self.failure is not None:
            raise self.failure
        return BorderLayouts((LAST,) * len(region.inputs), (LAST,))


class Generator(CodeGenerator):
    """Takes some seconds for each pooling."""

    name = "generator"
    targets = ("cpu",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def cost(self, work, target):
        pools = sum(call.op_name == "nn.max_pool2d" for call in _calls(work))
        return Cost(self.seconds * pools, is_sure=True)

    def generate(self, functions, target, options):
        raise AssertionError("nobody generates here")


def _calls(work):
    if hasattr(work, "calls"):
        return work.calls
    return [binding.value for _, composite in work.composites() for binding in composite.bindings]


def module_of(poolings: int) -> IRModule:
    """Poolings between two operators that the backend does not take."""
    b = FunctionBuilder()
    y = b.op("floor", b.input("x", X.shape))
    for _ in range(poolings):
        y = b.op("nn.max_pool2d", y, pool_size=(1, 1))
    return verify(IRModule({"main": b.function(b.op("floor", y))}))


def placed(poolings, seconds, backend=None, policy=None):
    module, recorder = module_of(poolings), Recorder()
    policy = policy or LeastCost(Generator(seconds), Target("cpu"))
    after = verify(partition(module, [backend or Backend()], PlacementSettings(recorder=recorder, policy=policy)))
    assert_same_meaning(module, after, [X])
    return called(after), recorder


def test_a_region_is_generated_that_gains_less_than_two_reorders():
    calls, recorder = placed(1, 1.5 * REORDER)
    assert calls == ["floor", "nn.max_pool2d", "floor"]
    assert {each.code for each in recorder.list_declined_matches()} == {"generated"}


def test_a_region_stays_that_gains_more():
    assert placed(1, 2.5 * REORDER)[0] == ["floor", "@acme_0", "floor"]
    assert placed(2, 1.5 * REORDER)[0] == ["floor", "@acme_0", "floor"]


def test_a_backend_that_is_named_keeps_its_regions():
    assert placed(1, 0.0, policy=TakeAll())[0] == ["floor", "@acme_0", "floor"]


def test_a_backend_that_fails_at_the_question_pays_for_no_borders():
    assert placed(1, 0.5 * REORDER, Backend(RuntimeError("lost")))[0] == ["floor", "@acme_0", "floor"]
