"""Writing ONNX models by hand: call the graph with an operator's name and its operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Graph:
    """Collects nodes and weights. Operands are names of values or arrays, which become initializers.

    Example:
        >>> g = Graph()
        >>> y = g("Relu", "x")
        >>> model = g.model({"x": ("float32", ["n", 3])}, {"y": (y, "float32", ["n", 3])})
    """

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def __call__(self, op_type: str, *operands: str | np.ndarray | float | list[int], **attributes: Any) -> str:
        """Add a node with one result; its name is returned."""
        name = f"{op_type.lower()}_{len(self.nodes)}"
        inputs = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def constant(self, value: np.ndarray | float | list[int]) -> str:
        """Add an initializer: numbers become float32, lists int64."""
        if isinstance(value, list):
            array = np.asarray(value, np.int64)
        else:
            array = np.asarray(value, np.float32) if isinstance(value, float) else value
        name = f"weight_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, *shape: int) -> np.ndarray:
        """Random weights whose size keeps activations near 1: the fan-in is the product of all dims but the first."""
        fan_in = max(1, int(np.prod(shape[1:])))
        return (self.random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    def vector(self, size: int, mean: float = 0.0) -> np.ndarray:
        """A random vector around `mean`."""
        return (mean + 0.1 * self.random.standard_normal(size)).astype(np.float32)

    def model(
        self,
        inputs: dict[str, tuple[str, list[int | str]]],
        outputs: dict[str, tuple[str, str, list[int | str]]],
        opset: int = 17,
    ) -> onnx.ModelProto:
        """The checked model. inputs: name -> (dtype, shape); outputs: name -> (value, dtype, shape)."""
        nodes = [
            *self.nodes,
            *(helper.make_node("Identity", [value], [name]) for name, (value, _, _) in outputs.items()),
        ]
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info(name, _type(dtype), shape) for name, (dtype, shape) in inputs.items()],
            [helper.make_tensor_value_info(name, _type(dtype), shape) for name, (_, dtype, shape) in outputs.items()],
            self.initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def _type(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
