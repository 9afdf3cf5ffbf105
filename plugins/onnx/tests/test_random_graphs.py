"""Random graphs of movement and arithmetic over symbolic sizes, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

Nodes = list[onnx.NodeProto]
Step = Callable[[st.DataObject, "Sketch", str], str]


class Sketch:
    """A graph under construction: nodes, weights, and the rank of every value."""

    def __init__(self, rank: int) -> None:
        self.nodes: Nodes = []
        self.weights: dict[str, np.ndarray] = {}
        self.ranks = {"x": rank}

    def add(self, op: str, inputs: list[str], rank: int, **attrs: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        self.ranks[name] = rank
        return name

    def weight(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name


def unary(data: st.DataObject, graph: Sketch, x: str) -> str:
    return graph.add(data.draw(st.sampled_from(["Relu", "Neg", "Tanh", "Identity", "Abs"])), [x], graph.ranks[x])


def transpose(data: st.DataObject, graph: Sketch, x: str) -> str:
    return graph.add("Transpose", [x], graph.ranks[x], perm=data.draw(st.permutations(range(graph.ranks[x]))))


def cut(data: st.DataObject, graph: Sketch, x: str) -> str:
    """Bounds that leave something of every size: onnxruntime has ways of its own with empty tensors."""
    axis = data.draw(st.integers(-graph.ranks[x], graph.ranks[x] - 1))
    start, end = data.draw(st.sampled_from([(0, 2), (-3, 2**31 - 1), (0, 2**62), (-2, 2**62), (-1, -100), (-5, 4)]))
    step = -1 if end == -100 else data.draw(st.integers(1, 2))
    return graph.add(
        "Slice", [x, graph.weight(start), graph.weight(end), graph.weight(axis), graph.weight(step)], graph.ranks[x]
    )


def flatten_by_shape(data: st.DataObject, graph: Sketch, x: str) -> str:
    """reshape(x, (x.shape[0], -1)), with the size taken from Shape."""
    first = graph.add("Shape", [x], 1)
    size = graph.add("Slice", [first, graph.weight(0), graph.weight(1)], 1)
    return graph.add("Reshape", [x, graph.add("Concat", [size, graph.weight(-1)], 1, axis=0)], 2)


def add_axis(data: st.DataObject, graph: Sketch, x: str) -> str:
    if graph.ranks[x] > 3:
        return x
    axis = data.draw(st.integers(0, graph.ranks[x]))
    return graph.add("Unsqueeze", [x, graph.weight(axis)], graph.ranks[x] + 1)


def reduce(data: st.DataObject, graph: Sketch, x: str) -> str:
    axis = data.draw(st.integers(0, graph.ranks[x] - 1))
    return graph.add("ReduceSum", [x, graph.weight(axis)], graph.ranks[x], keepdims=1)


def with_itself(data: st.DataObject, graph: Sketch, x: str) -> str:
    """x and what x became by reducing, joined by broadcasting; or x twice, one after the other."""
    if data.draw(st.booleans()):
        return graph.add("Mul", [x, reduce(data, graph, x)], graph.ranks[x])
    return graph.add("Concat", [x, x], graph.ranks[x], axis=data.draw(st.integers(0, graph.ranks[x] - 1)))


def expand_to_its_shape(data: st.DataObject, graph: Sketch, x: str) -> str:
    return graph.add("Expand", [reduce(data, graph, x), graph.add("Shape", [x], 1)], graph.ranks[x])


def pad(data: st.DataObject, graph: Sketch, x: str) -> str:
    amounts = [data.draw(st.integers(0, 2)) for _ in range(2 * graph.ranks[x])]
    return graph.add("Pad", [x, graph.weight(*amounts)], graph.ranks[x])


STEPS: list[Step] = [
    unary, transpose, cut, flatten_by_shape, add_axis, reduce, with_itself, expand_to_its_shape, pad,
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_graphs(make, agree, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    labels = [data.draw(st.sampled_from([size, f"s{size}_{axis}", None])) for axis, size in enumerate(sizes)]
    graph, value = Sketch(len(sizes)), "x"
    for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=7)):
        value = step(data, graph, value)
    if value == "x":
        value = graph.add("Relu", ["x"], len(sizes))
    x = np.random.default_rng(1).standard_normal(sizes, dtype=np.float32)
    model = make(graph.nodes, {"x": x}, [value], weights=graph.weights, shapes={"x": labels})
    agree(model, {"x": x}, rtol=1e-4, atol=1e-4)
