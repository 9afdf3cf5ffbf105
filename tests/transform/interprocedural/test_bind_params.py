"""Binding of parameters to constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard import dims
from kernelyard.errors import PassError
from kernelyard.ir import Constant, Function, FunctionBuilder, IRModule, verify
from kernelyard.testing.reference import evaluate
from kernelyard.transform.interprocedural.bind_params import BindParams

N, M = dims.symbol("n"), dims.symbol("m")
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(0, 2, 12, dtype=np.float32).reshape(3, 4)
B = np.arange(4, dtype=np.float32)


def linear(*shapes: tuple[dims.Dim, ...], **attrs: Any) -> IRModule:
    """x @ w + bias."""
    b = FunctionBuilder()
    x, w, bias = (b.input(name, shape) for name, shape in zip(("x", "w", "bias"), shapes, strict=True))
    return verify(IRModule({"main": b.function(b.op("add", b.op("matmul", x, w), bias), attrs=attrs)}))


def main(module: IRModule) -> Function:
    return verify(module).graph_functions()["main"]


def test_constants_take_the_parameters_place_by_name_or_variable():
    module = linear((2, 3), (3, 4), (4,))
    w = main(module).params[1]
    bound = BindParams("main", {w: Constant(W), "bias": B})(module)
    assert [param.name for param in main(bound).params] == ["x"]
    assert np.array_equal(evaluate(bound, [X])[0], evaluate(module, [X, W, B])[0])


def test_the_given_array_may_change_afterwards():
    weights = W.copy()
    bound = BindParams("main", {"w": weights, "bias": B})(linear((2, 3), (3, 4), (4,)))
    weights[:] = 0
    assert np.array_equal(evaluate(bound, [X])[0], X @ W + B)


def test_sizes_are_read_off_the_constants():
    module = linear((N, M), (M, 4), (4,))
    bound = BindParams("main", {"w": W})(module)
    assert main(bound).params[0].tensor_type.shape == (N, 3)
    assert np.array_equal(evaluate(bound, [X, B])[0], X @ W + B)


def test_input_names_follow():
    module = linear((2, 3), (3, 4), (4,), input_names=("input.1", "fc.weight", "fc.bias"))
    bound = main(BindParams("main", {"fc.weight": W})(module))
    assert bound.attrs["input_names"] == ("input.1", "fc.bias")


def test_nothing_given_is_no_change():
    module = linear((2, 3), (3, 4), (4,))
    assert BindParams("main", {})(module) is module


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(PassError, match="no parameter 'bais'") as info:
        BindParams("main", {"bais": B})(linear((2, 3), (3, 4), (4,)))
    assert info.value.hint == "did you mean 'bias'?"


def test_a_parameter_given_twice_is_refused():
    module = linear((2, 3), (3, 4), (4,))
    with pytest.raises(PassError, match="given twice"):
        BindParams("main", {"w": W, main(module).params[1]: W})(module)


@pytest.mark.parametrize(
    ("shapes", "given", "found"),
    [
        (((2, 3), (3, 4), (4,)), {"w": W.T.copy()}, "4"),
        (((2, N), (N, M), (M,)), {"w": W, "bias": np.zeros(5, np.float32)}, "5"),
        (((2, 3), (3, 4), (4,)), {"w": W.reshape(-1)}, "rank 1"),
    ],
    ids=["a fixed size", "a size that another constant gave", "a rank"],
)
def test_shapes_that_do_not_fit_are_refused(shapes, given, found):
    with pytest.raises(PassError, match="do not match") as info:
        BindParams("main", given)(linear(*shapes))
    assert found in str(info.value.found)


def test_another_dtype_is_refused():
    with pytest.raises(PassError, match="cannot be bound") as info:
        BindParams("main", {"bias": B.astype(np.float64)})(linear((2, 3), (3, 4), (4,)))
    assert "float64" in str(info.value.found)


SCENARIOS = {
    "BindParams: by name or variable": test_constants_take_the_parameters_place_by_name_or_variable,
    "BindParams: symbolic sizes inferred": test_sizes_are_read_off_the_constants,
    "BindParams: unknown name": test_an_unknown_name_is_refused_with_the_nearest,
    "BindParams: given twice": test_a_parameter_given_twice_is_refused,
    "BindParams: conflicting sizes": test_shapes_that_do_not_fit_are_refused,
}
