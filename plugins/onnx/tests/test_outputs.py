"""Outputs that are no tensors: as tensors of a program, in its artifact, or refused with how to go on."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import kernelyard as ky
from kernelyard.errors import UnsupportedOperatorError
from kernelyard_onnx.session import Session

NAMES = ["setosa", "versicolor", "virginica"]
X = np.random.default_rng(5).normal(size=(7, 4)).astype(np.float32)
LEARNING = "ai.onnx.ml"


def model_of(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(LEARNING, 3)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=9)


def text(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.STRING, None)


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)


def theirs(model: onnx.ModelProto, x: np.ndarray) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x}))


def classifier() -> onnx.ModelProto:
    """Return a classifier as skl2onnx writes it: the class by its name, and a map of probabilities for each row."""
    weights = {"coefficients": np.linspace(-1, 1, 12).tolist(), "intercepts": [0.5, 0.0, -0.25]}
    scores = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "p"],
        domain=LEARNING,
        classlabels_strings=NAMES,
        post_transform="SOFTMAX",
        **weights,
    )
    maps = helper.make_node("ZipMap", ["p"], ["maps"], domain=LEARNING, classlabels_strings=NAMES)
    return model_of([scores, maps], [text("label"), onnx.ValueInfoProto(name="maps")])


def test_a_classifier_gives_indices_and_values_and_says_of_what(tmp_path: Path) -> None:
    model = classifier()
    labels, rows = theirs(model, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one program serves all sizes
        ky.compile(model).save(tmp_path / "model.kyar")
    exe = ky.load(tmp_path / "model.kyar")
    indices, values = (tensor.numpy() for tensor in exe.run({"x": X}).values())
    texts, keys = json.loads(exe.metadata["label.texts"]), json.loads(exe.metadata["maps.keys"])
    assert [texts[index] for index in indices] == list(labels)
    assert len(set(indices.tolist())) > 1
    np.testing.assert_allclose(values, [[row[key] for key in keys] for row in rows], rtol=1e-5)


def test_the_elements_of_a_sequence_are_results_of_their_own() -> None:
    exe = ky.compile(model_of([helper.make_node("SplitToSequence", ["x"], ["y"], axis=1)], [sequence("y")]))
    results = exe.run({"x": X})
    assert list(results) == ["y[0]", "y[1]", "y[2]", "y[3]"]
    np.testing.assert_array_equal(np.hstack([result.numpy() for result in results.values()]), X)


def test_text_that_no_input_decides_is_refused() -> None:
    node = helper.make_node("Constant", [], ["y"], value_strings=["a", "b"])
    copy = helper.make_node("Abs", ["x"], ["z"])
    model = model_of([node, copy], [text("y"), helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is not compiled for the sizes that come: they decide nothing
        with pytest.raises(UnsupportedOperatorError, match="the same for all inputs") as caught:
            ky.compile(model)
    assert (caught.value.where, caught.value.found) == ("output 'y'", "text")
    assert "Session(model).run(feeds)" in str(caught.value)
    assert Session(model).run({"x": X})[0].tolist() == ["a", "b"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.bool_])
def test_numbers_are_written_as_onnxruntime_writes_them(dtype) -> None:
    numbers = [0, 1, -5, 123456789] if np.issubdtype(dtype, np.integer) else [1.5, 1, -0.0, 1 / 3, 3e20, 1e-7]
    numbers = np.array(numbers + [np.nan, np.inf, -np.inf] * np.issubdtype(dtype, np.floating))
    with np.errstate(over="ignore"):
        x = numbers.astype(dtype)
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n"])
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)], "g", [info], [text("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert Session(model).run({"x": x})[0].tolist() == theirs(model, x)[0].tolist()
