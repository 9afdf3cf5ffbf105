"""Small models, and the fixture of plugins that live in this process only."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from process_plugins import install as install

from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule


@pytest.fixture
def mlp() -> IRModule:
    """x (n, 4) -> softmax(relu(x @ w + b) @ v): two layers with a reshape between."""
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 4))
    random = np.random.default_rng(0)
    hidden = b.op("nn.relu", b.op("add", b.op("matmul", x, _weights(random, 4, 6)), _weights(random, 6)))
    pairs = b.op("reshape", hidden, shape=(dims.symbol("n") * 2, 3))
    return IRModule({"main": b.function(b.op("nn.softmax", b.op("matmul", pairs, _weights(random, 3, 5)), axis=1))})


def _weights(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


@pytest.fixture
def onnx_model() -> onnx.ModelProto:
    """x (batch, 3) -> y = relu(x) and z = -x, with metadata."""
    nodes = [helper.make_node("Relu", ["x"], ["y"], "first"), helper.make_node("Neg", ["x"], ["z"], "second")]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xyz"}
    graph = helper.make_graph(nodes, "g", [values["x"]], [values["y"], values["z"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"author": "somebody", "labels": "a\nb"})
    return model
