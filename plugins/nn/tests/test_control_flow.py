"""Branches: functions of the module, of which the one that is run is chosen when the model runs."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import nn
from kernelyard.errors import FrontendError
from kernelyard.ir import Call, Constant, Function
from kernelyard.ir.control_flow import IF
from kernelyard.nn import op
from kernelyard.testing import assert_allclose

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 4)).astype(np.float32)
SPEC = {"forward": {"x": nn.spec.Tensor(["n", 4])}}


class Chosen(nn.Module):
    """One linear layer for sums above 0, another one for the others."""

    def __init__(self) -> None:
        self.above, self.below = nn.Linear(4, 2), nn.Linear(4, 2, bias=False)
        for parameter in self.parameters():
            parameter.data = RANDOM.standard_normal(parameter.shape).astype(parameter.dtype)

    def forward(self, x):
        return op.cond(op.sum(x) > 0, lambda x: self.above(x), lambda x: self.below(x), [x])

    def expected(self, x: np.ndarray) -> np.ndarray:
        layer = self.above if x.sum() > 0 else self.below
        y = x @ layer.weight.data.T
        return y if layer.bias is None else y + layer.bias.data


class Branching(nn.Module):
    def __init__(self, then, otherwise) -> None:
        self.then, self.otherwise = then, otherwise

    def forward(self, x):
        return op.cond(op.sum(x) > 0, self.then, self.otherwise, [x])


def branches_of(module: ky.IRModule) -> list[Function]:
    calls = [each.value for each in module["forward"].bindings]
    (call,) = [each for each in calls if isinstance(each, Call) and each.op_name == IF]
    return [module[name.name] for name in call.args[:2]]


def test_the_branch_that_holds_is_run() -> None:
    model = Chosen()
    exe = ky.compile(nn.ModuleSpec(model, SPEC))
    for x in (np.abs(X), -np.abs(X), np.abs(X), X[:1]):
        assert_allclose(exe(x), model.expected(x))


def test_parameters_are_constants_of_a_branch_where_they_have_values() -> None:
    module = nn.ModuleSpec(Chosen(), SPEC).to_ir()
    for branch in branches_of(module):
        assert len(branch.params) == 1
        args = [arg for each in branch.bindings if isinstance(each.value, Call) for arg in each.value.args]
        assert any(isinstance(arg, Constant) for arg in args)


def test_parameters_are_operands_where_they_are_inputs() -> None:
    model = Chosen()
    module, parameters = model.export(SPEC)
    assert [len(branch.params) for branch in branches_of(module)] == [4, 4]
    exe = ky.compile(module)
    for x in (np.abs(X), -np.abs(X)):
        assert_allclose(exe(x, *(each.data for each in parameters.values())), model.expected(x))


def test_a_branch_may_return_several_tensors_and_what_it_is_given() -> None:
    model = Branching(lambda x: (x, op.exp(x)), lambda x: (op.negative(x), x))
    exe = ky.compile(nn.ModuleSpec(model, SPEC))
    for x in (np.abs(X), -np.abs(X), np.abs(X), -np.abs(X)):
        expected = (x, np.exp(x)) if x.sum() > 0 else (-x, x)
        for found, wanted in zip(exe(x), expected, strict=True):
            assert_allclose(found, wanted)


@pytest.mark.parametrize(
    ("otherwise", "message"),
    [
        (lambda x: op.sum(x), "return other types"),
        (lambda x: None, "must return tensors"),
    ],
)
def test_branches_return_tensors_of_the_same_types(otherwise, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        Branching(op.exp, otherwise).export(SPEC)


def test_a_branch_uses_what_it_is_given() -> None:
    class Leaking(nn.Module):
        def forward(self, x):
            y = op.exp(x)
            return op.cond(op.sum(x) > 0, lambda x: x + y, lambda x: x, [x])

    with pytest.raises(FrontendError, match="a branch uses a tensor that it was not given"):
        Leaking().export(SPEC)


def test_a_condition_is_a_bool_scalar() -> None:
    class Many(nn.Module):
        def forward(self, x):
            return op.cond(x > 0, lambda x: x, lambda x: x, [x])

    with pytest.raises(FrontendError, match="must be a bool scalar"):
        Many().export(SPEC)
