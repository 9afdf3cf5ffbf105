"""Cases of operators as modules, conformance, and random modules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from kernelyard.ir import Function, IRModule
from kernelyard.testing import assert_conforms, assert_same_meaning, evaluate, op_cases
from kernelyard.testing.op_cases import one_symbol_per_size
from kernelyard.testing.strategies import RandomProgram, modules


def test_operands_can_be_constants() -> None:
    case = op_cases(["nn.conv2d"])[0]
    module = case.module(constants=(1,))
    main = module["main"]
    assert isinstance(main, Function)
    assert [param.name for param in main.params] == ["x0"]
    assert evaluate(module, case.inputs(constants=(1,)))[0].tolist() == case.expected()[0].tolist()


def test_sizes_can_be_symbols() -> None:
    case = op_cases(["add"])[0]
    main = case.module(dim_of=one_symbol_per_size)["main"]
    assert isinstance(main, Function)
    assert str(main.result_type) == "Tensor[(n3, n5), float32]"


def test_conformance_names_the_case_that_fails() -> None:
    def wrong(module: IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
        return [array + 1 for array in evaluate(module, inputs)]

    for case in op_cases(["add", "split"]):
        assert_conforms(case, evaluate)
    with pytest.raises(AssertionError, match=r"nn\.relu: matrix"):
        assert_conforms(op_cases(["nn.relu"])[0], wrong)
    with pytest.raises(AssertionError, match="0 outputs"):
        assert_conforms(op_cases(["nn.relu"])[0], lambda module, inputs: [])


@settings(max_examples=25, deadline=None)
@given(modules())
def test_random_modules_run_and_are_equal_to_themselves(program: RandomProgram) -> None:
    assert_same_meaning(program.module, program.module, program.inputs)


def test_modules_of_other_meaning_are_told_apart() -> None:
    cases = {name: op_cases([name])[0] for name in ("nn.relu", "nn.gelu")}
    modules_ = [case.module() for case in cases.values()]
    with pytest.raises(AssertionError):
        assert_same_meaning(*modules_, cases["nn.relu"].inputs())
