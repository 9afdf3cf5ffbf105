"""A recurrent cell that a model writes out as a Scan of ONNX: a gate and a candidate of one sum."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def scanned_cell(steps: int | str, batch: int, hidden: int) -> onnx.ModelProto:
    """Return a model of one layer: h' = h + sigmoid(s) * (tanh(s) - h), where s = x W + h R.

    steps: of the input, or the name of their number.
    """
    rng, bound = np.random.default_rng(0), 1 / math.sqrt(hidden)
    shape = [batch, hidden]
    weights = {name: rng.uniform(-bound, bound, (hidden, hidden)).astype(np.float32) for name in "wr"}
    nodes = [
        helper.make_node("MatMul", ["item", "w"], ["from_item"]),
        helper.make_node("MatMul", ["h", "r"], ["from_h"]),
        helper.make_node("Add", ["from_item", "from_h"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["gate"]),
        helper.make_node("Tanh", ["s"], ["candidate"]),
        helper.make_node("Sub", ["candidate", "h"], ["change"]),
        helper.make_node("Mul", ["gate", "change"], ["step"]),
        helper.make_node("Add", ["h", "step"], ["next"]),
        helper.make_node("Identity", ["next"], ["out"]),
    ]

    def info(name: str, shape: list[int | str] | list[int] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, FLOAT, shape)

    body = helper.make_graph(
        nodes, "cell", [info("h", shape), info("item", shape)], [info("next", shape), info("out", shape)]
    )
    scan = helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    start = numpy_helper.from_array(np.zeros(shape, np.float32), "start")
    graph = helper.make_graph(
        [scan],
        "layer",
        [info("x", [steps, *shape])],
        [info("y", None)],
        [start, *(numpy_helper.from_array(array, name) for name, array in weights.items())],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
