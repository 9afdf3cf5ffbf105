"""Operators and forms of operators of old opsets, compiled: against onnxruntime where it has them, else NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import kernelyard as ky

Make = Callable[..., onnx.ModelProto]
RNG = np.random.default_rng(5)
IMAGE = RNG.standard_normal((2, 3, 6, 7), np.float32)
I64 = np.int64

EXPERIMENTAL: dict[str, dict[str, Any]] = {
    "Affine": {"alpha": 0.5, "beta": 2.0},
    "Scale": {"scale": 3.0},
    "ScaledTanh": {"alpha": 1.5, "beta": 0.7},
    "ParametricSoftplus": {"alpha": 1.5, "beta": 0.7},
    "ImageScaler": {"scale": 0.5, "bias": [1.0, 2.0, 3.0]},
    "Crop": {"border": [1, 2, 3, 1]},
}


def compiled(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    exe = ky.compile(model, backends=[])
    return np.asarray(next(iter(exe.run(feeds).values())))


@pytest.mark.parametrize("shape", [None, ["n", 3, "h", "w"]], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("op", [*EXPERIMENTAL, "Crop to a size"])
def test_experimental_operators(op: str, shape: list[int | str] | None, make: Make) -> None:
    op_type, attrs = op.split()[0], EXPERIMENTAL[op.split()[0]]
    if op != op_type:
        attrs = {**attrs, "scale": [2, 3]}
    model = make(
        [helper.make_node(op_type, ["x"], ["y"], **attrs)], {"x": IMAGE}, shapes={"x": shape or IMAGE.shape}, opset=8
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": IMAGE})
    np.testing.assert_allclose(compiled(model, {"x": IMAGE}), expected, rtol=1e-5, atol=1e-5)


def test_dynamic_slice(make: Make) -> None:
    weights = {"s": np.array([1, -3], I64), "e": np.array([5, 99], I64), "a": np.array([2, 3], I64)}
    model = make(
        [helper.make_node("DynamicSlice", ["x", "s", "e", "a"], ["y"])], {"x": IMAGE}, weights=weights, opset=9
    )
    np.testing.assert_array_equal(compiled(model, {"x": IMAGE}), IMAGE[:, :, 1:5, -3:])


# (node's attributes, further inputs, what it means), of opset 1
FORMS: dict[str, tuple[dict[str, Any], dict[str, np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "Reshape": ({"shape": [0, -1]}, {}, lambda x: x.reshape(2, -1)),
    "Pad": ({"paddings": [0, 0, 1, 0, 0, 0, 2, 0]}, {}, lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 0)))),
    "Clip": ({"min": -0.5, "max": 0.25}, {}, lambda x: x.clip(-0.5, 0.25)),
    "Tile": ({}, {"tiles": np.array(3, I64), "axis": np.array(2, I64)}, lambda x: np.tile(x, (1, 1, 3, 1))),
    "Upsample": ({"height_scale": 2.0, "width_scale": 3.0}, {}, lambda x: x.repeat(2, 2).repeat(3, 3)),
    "InstanceNormalization": (
        {"epsilon": 1e-3},
        {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32)},
        lambda x: (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-3),
    ),
}


@pytest.mark.parametrize("op", FORMS)
def test_forms_of_opset_1(op: str, make: Make) -> None:
    attrs, weights, meaning = FORMS[op]
    model = make([helper.make_node(op, ["x", *weights], ["y"], **attrs)], {"x": IMAGE}, weights=weights, opset=1)
    np.testing.assert_allclose(compiled(model, {"x": IMAGE}), meaning(IMAGE), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_of_opset_1(op: str, make: Make) -> None:
    """As those of opset 7."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    x = RNG.standard_normal((4, 2, 3), np.float32)
    weights = {"w": RNG.standard_normal((1, gates * 5, 3), np.float32), "r": np.ones((1, gates * 5, 5), np.float32) / 9}
    old, new = (
        make([helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=5)], {"x": x}, weights=weights, opset=opset)
        for opset in (6, 7)
    )
    (expected,) = onnxruntime.InferenceSession(new.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(compiled(old, {"x": x}), expected, rtol=1e-5, atol=1e-6)
