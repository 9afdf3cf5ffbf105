"""Elementwise operators behind generated kernels: they stay with these where the compiler has the choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Expr, FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns import Accept, FusionPattern, is_op, wildcard
from kernelyard.patterns.cost import Cost
from kernelyard.placement.partition import partition
from kernelyard.placement.policy import LeastCost, TakeAll
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.target import Target
from kernelyard.testing.reference import assert_same_meaning

X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
ROW = np.ones((1, 4), np.float32)
NO_TIME = Cost(0.0, is_sure=True)
RELU = FusionPattern("acme.relu", is_op("nn.relu")(wildcard()), lambda match: Accept(NO_TIME))
ADD = FusionPattern("acme.add", is_op("add")(wildcard(), wildcard()), lambda match: Accept(NO_TIME))
MATMUL = FusionPattern("acme.matmul", is_op("matmul")(wildcard(), wildcard()), lambda match: Accept(NO_TIME))
Build = Callable[[FunctionBuilder, Var], Expr]


class Backend(InterpretedBackend):
    """Takes products, sums and relu in no time, so that no cost speaks for the code generator."""

    def __init__(self) -> None:
        super().__init__("acme", patterns=[RELU, ADD, MATMUL])

    def check_region(self, region):
        return Accept(NO_TIME)


class Generator(CodeGenerator):
    """Takes 1 us for everything."""

    name = "generator"
    targets = ("cpu",)

    def __init__(self, is_sure: bool = True) -> None:
        self.is_sure = is_sure

    def cost(self, work, target):
        return Cost(1e-6, self.is_sure)

    def generate(self, functions, target, options):
        raise AssertionError("nobody generates here")


def placed(build: Build, policy: LeastCost | TakeAll) -> tuple[list[str], Recorder]:
    b = FunctionBuilder()
    module = verify(IRModule({"main": b.function(build(b, b.input("x", X.shape)))}))
    recorder = Recorder()
    after = verify(partition(module, [Backend()], PlacementSettings(recorder=recorder, policy=policy)))
    assert_same_meaning(module, after, [X])
    return called(after), recorder


def least_cost(is_sure: bool = True) -> LeastCost:
    return LeastCost(Generator(is_sure), Target("cpu"))


def bias_and_relu(b: FunctionBuilder, x: Var) -> Expr:
    """A product, then floor, which the backend does not take, with a bias, an activation, and another product."""
    y = b.op("floor", b.op("matmul", x, X))
    return b.op("matmul", b.op("nn.relu", b.op("add", y, ROW)), X)


def test_bias_and_activation_stay_with_the_generated_kernel() -> None:
    calls, recorder = placed(bias_and_relu, least_cost())
    assert calls == ["@acme_0", "floor", "add", "nn.relu", "@acme_0"]
    reasons = {(each.pattern, each.code) for each in recorder.list_declined_matches()}
    assert reasons == {("acme.add", "generated"), ("acme.relu", "generated")}
    assert "continues a kernel of generator" in recorder.list_declined_matches()[0].message


@pytest.mark.parametrize("policy", [least_cost(is_sure=False), TakeAll()], ids=["a guess", "a named backend"])
def test_a_backend_keeps_them_otherwise(policy: LeastCost | TakeAll) -> None:
    assert placed(bias_and_relu, policy)[0] == ["@acme_0", "floor", "@acme_1"]


def test_a_sum_with_what_the_backend_made_is_its_own() -> None:
    def residual(b: FunctionBuilder, x: Var) -> Expr:
        y = b.op("matmul", x, X)
        return b.op("matmul", b.op("add", b.op("floor", y), y), X)

    assert placed(residual, least_cost())[0] == ["@acme_0", "floor", "@acme_1"]


def test_a_view_of_what_the_backend_made_is_not_generated() -> None:
    def viewed(b: FunctionBuilder, x: Var) -> Expr:
        y = b.op("reshape", b.op("matmul", x, X), shape=(2, 8))
        return b.op("nn.relu", y)

    assert placed(viewed, least_cost())[0] == ["@acme_0", "reshape", "@acme_1"]


def test_items_of_generated_tuples_are_generated() -> None:
    def halves(b: FunctionBuilder, x: Var) -> Expr:
        return b.op("nn.relu", b.get(b.op("split", x, axis=1, sections=(2, 2)), 0))

    assert "nn.relu" in placed(halves, least_cost())[0]
