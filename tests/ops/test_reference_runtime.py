"""The runtime module of kind "reference": calls, saved form, and refusal of what it did not write."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.errors import ArtifactCorruptedError, CodegenError, ExecutionError
from kernelyard.ir import Call, GlobalVar, TensorType, Var, get_op
from kernelyard.ops.reference_runtime import ReferenceModule, load
from kernelyard.runtime.abi.module import BindContext, BoundTensor

n = dims.symbol("n")
VAR = Var("x", TensorType((n, 3), "float32"))


@pytest.fixture
def module() -> ReferenceModule:
    return ReferenceModule.from_calls(
        {
            "clip_0": Call(get_op("clip"), [VAR], {"max": float("inf"), "min": 0.0}),
            "reshape_1": Call(get_op("reshape"), [VAR], {"shape": (n * 3,)}),
            "concat_2": Call(get_op("concat"), [VAR, VAR, VAR], {"axis": 1}),
        }
    )


def test_it_says_what_it_holds(module: ReferenceModule) -> None:
    assert module.symbols() == ("clip_0", "reshape_1", "concat_2")
    assert "reshape_1: reshape" in module.inspect()
    assert module.constants() == {}


def test_saved_and_loaded_it_is_the_same(module: ReferenceModule) -> None:
    data = module.save_to_bytes()
    again = load(data, {})
    assert again.save_to_bytes() == data
    assert set(again.symbols()) == set(module.symbols())
    x, y = np.float32([[-1, 2, np.inf]]), np.zeros((1, 3), np.float32)
    again.get_function("clip_0")(x, y)
    assert y.tolist() == [[0, 2, np.inf]]


def test_symbolic_attributes_get_their_values_at_the_call(module: ReferenceModule) -> None:
    x, y = np.ones((2, 3), np.float32), np.zeros(6, np.float32)
    module.get_function("reshape_1")(x, y, symbols={"n": 2})
    assert y.tolist() == [1] * 6


def test_a_variadic_call_fills_its_last_tensor(module: ReferenceModule) -> None:
    x, y = np.ones((1, 3), np.float32), np.zeros((1, 9), np.float32)
    module.get_function("concat_2")(x, x * 2, x * 3, y)
    assert y.tolist() == [[1] * 3 + [2] * 3 + [3] * 3]


def test_it_binds_to_memory(module: ReferenceModule) -> None:
    x, y = np.float32([[-1, 2, 3]]), np.zeros(3, np.float32)
    args = [BoundTensor(x.ctypes.data, x.shape, "float32"), BoundTensor(y.ctypes.data, y.shape, "float32")]
    call = module.bind("reshape_1", args, {"n": 1}, BindContext(1, lambda nbytes: 0))
    for step in call.steps:
        assert callable(step)
        step()
    assert y.tolist() == [-1, 2, 3]


def test_outputs_must_fit(module: ReferenceModule) -> None:
    with pytest.raises(ExecutionError, match="do not match"):
        module.get_function("clip_0")(np.ones((2, 3), np.float32), np.ones((2, 3), np.float64))
    with pytest.raises(ExecutionError, match="do not match"):
        module.get_function("clip_0")(np.ones((2, 3), np.float32))
    with pytest.raises(ExecutionError, match="no function 'other'"):
        module.get_function("other")


def test_only_operators_with_a_reference_can_be_interpreted() -> None:
    with pytest.raises(CodegenError, match="with a reference"):
        ReferenceModule.from_calls({"f": Call(GlobalVar("g"), [VAR], type_=VAR.type)})


GOOD = {"schema": 1, "calls": {"f": {"op": "clip", "attrs": {"min": 0.0, "max": None}}}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        {"schema": 2, "calls": {}},
        {"schema": 1, "calls": []},
        {"schema": 1, "calls": {"f": 3}},
        {"schema": 1, "calls": {"f": {"op": "no_such_op", "attrs": {}}}},
        {"schema": 1, "calls": {"f": {"op": "call_tir", "attrs": {}}}},
        {"schema": 1, "calls": {"f": {"op": "clip", "attrs": {"minimum": 0}}}},
        {"schema": 1, "calls": {"f": {"op": "clip", "attrs": {"min": "soon"}}}},
        {"schema": 1, "calls": {"f": {"op": "clip", "attrs": []}}},
        {"schema": 1, "calls": {"f": {"op": "reshape", "attrs": {}}}},
        {"schema": 1, "calls": {"f": {"op": "reshape", "attrs": {"shape": ["n +"]}}}},
        {"schema": 1, "calls": {"f": {"op": "reshape", "attrs": {"shape": ["0 // 0"]}}}},
        {"schema": 1, "calls": {"f": {"op": "concat", "attrs": {"axis": 1.5}}}},
    ],
)
def test_what_it_did_not_write_is_refused(content: object) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(ArtifactCorruptedError):
        load(data, {})


def test_the_smallest_good_content_is_accepted() -> None:
    assert load(json.dumps(GOOD).encode(), {}).symbols() == ("f",)
