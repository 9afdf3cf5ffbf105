"""Helpers that the tests share: make small models, import them, compare with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from kernelyard.ir import Function, IRModule
from kernelyard.ir.verify import verify
from kernelyard.ops.interpreter import run
from kernelyard_onnx.frontend import ONNXFrontend

onnxruntime.set_default_logger_severity(4)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] = ("y",),
    *,
    weights: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    opset: int = 17,
    **graph: Any,
) -> onnx.ModelProto:
    """A model whose inputs have the dtypes of sample arrays, and their shapes unless `shapes` says otherwise."""
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            (shapes or {}).get(name, array.shape),
        )
        for name, array in inputs.items()
    ]
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    proto = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs], initializers)
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **graph)


def function_of(model: onnx.ModelProto | bytes, **options: Any) -> Function:
    """The verified "main" of a model."""
    module = ONNXFrontend().import_model(model, options)
    verify(module)
    main = module["main"]
    assert isinstance(main, Function)
    return main


def compare(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], rtol: float = 1e-5, atol: float = 1e-5
) -> Function:
    """Import the model, and check its results by the reference interpreter against onnxruntime's."""
    main = function_of(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(feeds))
    found = run(IRModule({"main": main}), {name: feeds[name] for name in main.attrs["input_names"]})
    assert len(found) == len(expected)
    for actual, wanted in zip(found, expected, strict=True):
        wanted = np.asarray(wanted)
        assert actual.shape == wanted.shape
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol)
    return main


@pytest.fixture(scope="session")
def make() -> Callable[..., onnx.ModelProto]:
    """`build`."""
    return build


@pytest.fixture(scope="session")
def import_main() -> Callable[..., Function]:
    """`function_of`."""
    return function_of


@pytest.fixture(scope="session")
def agree() -> Callable[..., Function]:
    """`compare`."""
    return compare
