"""Inputs of size 0 whose results are not empty: compiled for any size, run on nothing, compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import kernelyard as ky
from kernelyard_onnx.session import Session

X = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
NOTHING = np.zeros((2, 0, 3), np.float32)
AXIS = np.array([1], np.int64)


def node(op: str, *inputs: str, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["y"], **attrs)


CASES = {
    "sum": [node("ReduceSum", "x", "axis", keepdims=0)],
    "sum of squares": [node("ReduceSumSquare", "x", axes=[1])],
    "product": [node("ReduceProd", "x", axes=[1])],
    "greatest": [node("ReduceMax", "x", axes=[1])],
    "concat": [node("Concat", "x", "table", axis=1)],
    "pad": [node("Pad", "x", "pads")],
    "resize": [
        helper.make_node("Resize", ["x", "", "scales"], ["resized"], mode="linear"),
        node("Concat", "resized", "table", axis=1),
    ],
    "hardmax": [helper.make_node("Hardmax", ["x"], ["hard"], axis=1), node("Concat", "hard", "table", axis=1)],
    "size": [node("Shape", "x")],
    "whether there is any": [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "axis"], ["size"]),
        node("Greater", "size", "none"),
    ],
}
WEIGHTS = {
    "axis": AXIS,
    "table": np.ones((2, 1, 3), np.float32),
    "scales": np.array([1, 1.5, 1], np.float32),
    "pads": np.array([0, 1, 0, 0, 0, 0], np.int64),
    "none": np.array([0], np.int64),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backends", [[], "auto"], ids=["native-cpu", "auto"])
def test_open_sizes_may_be_0(name: str, backends: list[str] | str, make: Callable[..., onnx.ModelProto]) -> None:
    used = {each for made in CASES[name] for each in made.input}
    weights = {key: value for key, value in WEIGHTS.items() if key in used}
    model = make(CASES[name], {"x": X}, weights=weights, shapes={"x": [2, "n", 3]})
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    exe = ky.compile(model, backends=backends)
    for x in (X, NOTHING, X, NOTHING):
        (wanted,) = theirs.run(None, {"x": x})
        found = exe(x).numpy()
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_open_sizes_may_be_smaller_than_a_window(op: str, make: Callable[..., onnx.ModelProto]) -> None:
    """Onnxruntime lets a window have one position that it is larger than by less than a stride."""
    pool = helper.make_node(op, ["x"], ["pooled"], kernel_shape=[3, 2], strides=[2, 2])
    x = np.arange(2 * 9 * 8, dtype=np.float32).reshape(1, 2, 9, 8)
    model = make([pool, node("GlobalAveragePool", "pooled")], {"x": x}, shapes={"x": [1, 2, "h", "w"]})
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    exe, session = ky.compile(model, backends=[]), Session(model, [])
    for height, width in ((9, 8), (2, 8), (2, 1), (9, 8)):
        part = np.ascontiguousarray(x[:, :, :height, :width])
        (wanted,) = theirs.run(None, {"x": part})
        for found in (exe(part).numpy(), session.run({"x": part})[0]):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(ky.errors.ShapeError, match="inconsistent"):
        exe(x[:, :, :1])


def test_sizes_that_options_fix_stay_fixed(make: Callable[..., onnx.ModelProto]) -> None:
    model = make([node("ReduceSum", "x", "axis")], {"x": X}, weights={"axis": AXIS}, shapes={"x": ["m", "n", 3]})
    exe = ky.compile(model, options={"onnx": {"shapes": {"x": (2, None, None)}}})
    assert not exe(NOTHING).numpy().any()
    with pytest.raises(ky.errors.InputShapeError, match="axis 0"):
        exe(np.zeros((3, 0, 3), np.float32))
