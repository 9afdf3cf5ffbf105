"""Small ONNX models whose nodes have names, for tests of how compiled programs run."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def perceptron(batch: int | str = 3, seed: int = 0) -> onnx.ModelProto:
    """16-32-8: two dense layers with a relu between them, called dense_0, relu and dense_1, and a softmax."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32) / 4, name)

    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h0"], name="dense_0"),
        helper.make_node("Relu", ["h0"], ["h1"], name="relu"),
        helper.make_node("Gemm", ["h1", "w1", "b1"], ["h2"], name="dense_1"),
        helper.make_node("Softmax", ["h2"], ["y"], name="softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8])],
        [weight("w0", 16, 32), weight("b0", 32), weight("w1", 32, 8), weight("b1", 8)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def convolution() -> onnx.ModelProto:
    """A convolution with a relu, and a sigmoid gate: nodes conv, relu, pool, gate and mul."""
    rng = np.random.default_rng(1)
    weight = numpy_helper.from_array(rng.standard_normal((8, 3, 3, 3), dtype=np.float32) / 4, "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Sigmoid", ["p"], ["s"], name="gate"),
        helper.make_node("Mul", ["r", "s"], ["y"], name="mul"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 10, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 10, 12])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feeds_of(model: onnx.ModelProto, symbol_size: int = 3, seed: int = 2) -> dict[str, np.ndarray]:
    """Random feeds; symbolic dims have the given size."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        shape = [dim.dim_value or symbol_size for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.standard_normal(shape, dtype=np.float32)
    return feeds
