"""ComputedValues: tensors inside of a model, computed for given inputs before the rest of it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from kernelyard_onnx.external_data import WeightFiles


class Runnable(Protocol):
    """Run a model, as `Session` does."""

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs, in order."""
        ...


MakeSession = Callable[[onnx.ModelProto, "WeightFiles | None"], Runnable]


class ComputedValues:
    """The values of tensors that a model's graph makes; each is computed by the nodes that it needs, and no others.

    make_session: makes what runs a model.
    """

    def __init__(self, model: onnx.ModelProto, files: WeightFiles | None, make_session: MakeSession) -> None:
        self._model = model
        self._files = files
        self._make_session = make_session
        self._prefixes: dict[str, tuple[frozenset[str], Runnable]] = {}

    def value(self, name: str, feeds: Mapping[str, Any]) -> np.ndarray:
        """Return the value of a tensor of the graph for the inputs of the model.

        Raises: as `Session.run`.
        """
        if name not in self._prefixes:
            prefix = model_of(self._model, name)
            inputs = frozenset(info.name for info in prefix.graph.input)
            self._prefixes[name] = inputs, self._make_session(prefix, self._files)
        inputs, session = self._prefixes[name]
        (value,) = session.run({key: feed for key, feed in feeds.items() if key in inputs})
        return np.asarray(value)


def model_of(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the part of a model that computes one tensor: its nodes, weights and inputs.

    Example:
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { a = Abs(x) y = Exp(a) }'
        >>> [node.op_type for node in model_of(parser.parse_model(text), "a").graph.node]
        ['Abs']
    """
    graph = model.graph
    maker = {output: number for number, node in enumerate(graph.node) for output in node.output if output}
    needed, waiting, chosen = set[str](), [name], set[int]()
    while waiting:
        current = waiting.pop()
        if current in needed:
            continue
        needed.add(current)
        if current in maker:
            chosen.add(maker[current])
            waiting += names_read(graph.node[maker[current]])
    part = helper.make_graph(
        [graph.node[number] for number in sorted(chosen)],
        graph.name,
        [info for info in graph.input if info.name in needed],
        [onnx.ValueInfoProto(name=name)],
        [tensor for tensor in graph.initializer if tensor.name in needed],
        sparse_initializer=[each for each in graph.sparse_initializer if each.values.name in needed],
    )
    return helper.make_model(
        part, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version
    )


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, and all that graphs inside it do."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from names_read(inner)
