"""JSONRuntime: base of runtimes that run a graph of library kernels, given as JSON.

A module's blob is `{"schema": 1, "graphs": [...]}`. It comes from a file, so it is read like foreign data: every
field is checked, references point backwards, constants are named by digest and delivered beside the blob.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from kernelyard import dtypes
from kernelyard.dims import Bounds, Dim
from kernelyard.errors import ArtifactVersionError, OptionError
from kernelyard.records import NamedTuple, record
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor
from kernelyard.runtime.abi.spec import Fields, Signature, TensorSpec, corrupted, is_int, read_json, write_json
from kernelyard.runtime.modules.bindable import BindableModule

SCHEMA = 1
MAX_ATTRIBUTE_DEPTH = 8

_NO_BOUNDS: Mapping[str, Bounds] = {}

NodeEntry = tuple[int, int]
"""Node number and output number."""


@record
class JSONNode:
    """A node of a JSON graph.

    kind: "input" (`index` of the graph's inputs), "constant" (`digest`) or "kernel" (`op`, `inputs` by role, `attrs`).
    outputs: one spec for inputs and constants, one per result for kernels.
    """

    kind: str
    outputs: tuple[TensorSpec, ...]
    op: str = ""
    inputs: tuple[tuple[str, NodeEntry], ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    index: int = -1
    digest: str = ""

    def input(self, role: str) -> NodeEntry | None:
        """Return the operand of that role, None where the node has none."""
        return next((entry for name, entry in self.inputs if name == role), None)

    def to_json(self) -> dict[str, Any]:
        """Return the node as JSON data."""
        if self.kind == "input":
            return {"kind": "input", "index": self.index}
        if self.kind == "constant":
            return {"kind": "constant", "digest": self.digest, **self.outputs[0].to_json()}
        return {
            "kind": "kernel",
            "op": self.op,
            "inputs": [{"role": role, "value": list(entry)} for role, entry in self.inputs],
            "attrs": dict(self.attrs),
            "outputs": [spec.to_json() for spec in self.outputs],
        }


class JSONGraph(NamedTuple):
    """One function: nodes in an order in which they can run.

    size_bounds: of symbolic dims of the inputs, as far as the user gave them; the runtime refuses other sizes.
    """

    symbol: str
    inputs: tuple[TensorSpec, ...]
    nodes: tuple[JSONNode, ...]
    outputs: tuple[NodeEntry, ...]
    size_bounds: Mapping[str, Bounds] = _NO_BOUNDS

    def bounds(self, dim: Dim) -> Bounds:
        """Return the least and the largest value that a size may have, as `Region.bounds` does for codegen: of use to
        `prepare`, which has to provide for the largest.
        """
        from kernelyard.dims.interval import bounds_of

        return bounds_of(dim, self.size_bounds)

    def spec(self, entry: NodeEntry) -> TensorSpec:
        """Return the shape and dtype of a value."""
        return self.nodes[entry[0]].outputs[entry[1]]

    def signature(self) -> Signature:
        """Return the inputs, and the types of the outputs."""
        return Signature(self.inputs, tuple(map(self.spec, self.outputs)))

    def digests(self) -> tuple[str, ...]:
        """Return the digests of the constants, in order of use, each once."""
        return tuple(dict.fromkeys(node.digest for node in self.nodes if node.kind == "constant"))

    def to_json(self) -> dict[str, Any]:
        """Return the graph as JSON data, schema 1."""
        return {
            "schema": SCHEMA,
            "symbol": self.symbol,
            "inputs": [spec.to_json() for spec in self.inputs],
            "nodes": [node.to_json() for node in self.nodes],
            "outputs": [list(entry) for entry in self.outputs],
            **({"bounds": {name: list(pair) for name, pair in self.size_bounds.items()}} if self.size_bounds else {}),
        }

    @staticmethod
    def from_json(value: Any, where: str = "graph") -> JSONGraph:
        """Read a graph, checking everything.

        Raises: ArtifactCorruptedError, ArtifactVersionError.
        """
        fields = Fields(value, where)
        check_schema(fields)
        inputs = fields.each("inputs", lambda item, place: Fields(item, place).tensor())
        nodes: list[JSONNode] = []
        for item, place in fields.items("nodes"):
            nodes.append(_read_node(Fields(item, place), inputs, nodes))
        outputs = fields.each("outputs", lambda item, place: _read_entry(item, place, nodes))
        bounds = _read_bounds(Fields(fields.any("bounds"), f"{where}.bounds")) if "bounds" in fields else _NO_BOUNDS
        return JSONGraph(fields.text("symbol"), inputs, tuple(nodes), outputs, bounds)

    def __str__(self) -> str:
        lines = [f"{self.symbol}({', '.join(map(repr, self.inputs))})"]
        for number, node in enumerate(self.nodes):
            if node.kind == "kernel":
                args = ", ".join(f"{role}=%{source}.{output}" for role, (source, output) in node.inputs)
                attrs = ", ".join(f"{name}={value}" for name, value in node.attrs.items())
                lines.append(f"  %{number} = {node.op}({args}) {{{attrs}}} -> {', '.join(map(repr, node.outputs))}")
            else:
                what = f"input {node.index}" if node.kind == "input" else f"constant {node.digest[:12]}"
                lines.append(f"  %{number} = {what} -> {node.outputs[0]!r}")
        return "\n".join([*lines, f"  return {', '.join(f'%{source}.{output}' for source, output in self.outputs)}"])


def check_schema(fields: Fields) -> None:
    """Refuse a schema that is newer than ours.

    Raises: ArtifactVersionError.
    """
    schema = fields.integer("schema", 1)
    if schema > SCHEMA:
        raise ArtifactVersionError(
            "compiled data is of a newer schema",
            where=fields.where,
            found=schema,
            expected=f"at most {SCHEMA}",
            hint="upgrade kernelyard and its plugins, or compile the model again",
        )


def _read_node(fields: Fields, inputs: Sequence[TensorSpec], before: Sequence[JSONNode]) -> JSONNode:
    kind = fields.text("kind")
    if kind == "input":
        if not inputs:
            raise corrupted(fields.where, kind, "no input node: the graph has no inputs")
        index = fields.integer("index", 0, len(inputs) - 1)
        return JSONNode("input", (inputs[index],), index=index)
    if kind == "constant":
        return JSONNode("constant", (fields.tensor(),), digest=fields.digest())
    if kind != "kernel":
        raise corrupted(f"{fields.where}.kind", kind, "input, constant or kernel")
    attrs = Fields(fields.any("attrs"), f"{fields.where}.attrs").value
    _check_attribute(attrs, f"{fields.where}.attrs", 0)
    operands = fields.each("inputs", lambda item, place: _read_operand(Fields(item, place), before))
    outputs = fields.each("outputs", lambda item, place: Fields(item, place).tensor())
    return JSONNode("kernel", outputs, fields.text("op"), operands, MappingProxyType(attrs))


def _read_bounds(fields: Fields) -> Mapping[str, Bounds]:
    from kernelyard.dims.interval import check_bounds

    try:
        return check_bounds(fields.value)
    except OptionError as error:
        raise corrupted(fields.where, error.found, f"{error.expected}") from error


def _read_operand(fields: Fields, before: Sequence[JSONNode]) -> tuple[str, NodeEntry]:
    return fields.text("role"), _read_entry(fields.any("value"), f"{fields.where}.value", before)


def _read_entry(value: Any, where: str, before: Sequence[JSONNode]) -> NodeEntry:
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_int, value)):
        raise corrupted(where, value, "[node, output]")
    node, output = value
    if not 0 <= node < len(before) or not 0 <= output < len(before[node].outputs):
        raise corrupted(where, value, "an output of a node that comes before")
    return node, output


def _check_attribute(value: Any, where: str, depth: int) -> None:
    if depth > MAX_ATTRIBUTE_DEPTH:
        raise corrupted(where, "deeper nesting", f"at most {MAX_ATTRIBUTE_DEPTH} levels")
    if isinstance(value, dict):
        for name, item in value.items():
            _check_attribute(item, f"{where}.{name}", depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_attribute(item, where, depth + 1)


class JSONRuntime(BindableModule):
    """A module whose functions are JSON graphs; a subclass says its `kind` and how to `build` one for known shapes.

    constants: arrays by digest; every digest that a graph names must be there, with that shape and dtype.
    """

    def __init__(self, graphs: Sequence[JSONGraph], constants: Mapping[str, np.ndarray]) -> None:
        self.graphs = {graph.symbol: graph for graph in graphs}
        if len(self.graphs) != len(graphs):
            raise corrupted(f"{self.kind} module", [graph.symbol for graph in graphs], "one graph per symbol")
        self._constants: dict[str, np.ndarray] = {}
        for graph in graphs:
            self._take_constants(graph, constants)

    def _take_constants(self, graph: JSONGraph, constants: Mapping[str, np.ndarray]) -> None:
        for node in graph.nodes:
            if node.kind != "constant":
                continue
            (spec,) = node.outputs
            array = constants.get(node.digest)
            if array is None or array.shape != spec.shape or dtypes.from_numpy(array.dtype) != spec.dtype:
                found = "no constant" if array is None else f"{array.shape} {array.dtype}"
                raise corrupted(f"{graph.symbol}, constant {node.digest[:12]}", found, repr(spec))
            self._constants[node.digest] = array

    @classmethod
    def load_from_bytes(cls, data: bytes, constants: Mapping[str, np.ndarray]) -> Self:
        """Return the module that `save_to_bytes` wrote.

        Raises: ArtifactCorruptedError, ArtifactVersionError.
        """
        fields = Fields(read_json(data, f"{cls.kind} module"), f"{cls.kind} module")
        check_schema(fields)
        return cls(fields.each("graphs", JSONGraph.from_json), constants)

    def save_to_bytes(self) -> bytes:
        return write_json({"schema": SCHEMA, "graphs": [graph.to_json() for graph in self.graphs.values()]})

    def symbols(self) -> tuple[str, ...]:
        return tuple(self.graphs)

    def constants(self) -> Mapping[str, np.ndarray]:
        return self._constants

    def inspect(self) -> str:
        return "\n\n".join(map(str, self.graphs.values()))

    def graph(self, symbol: str) -> JSONGraph:
        """Return the graph of that name.

        Raises: ExecutionError.
        """
        if symbol not in self.graphs:
            raise self.unknown_symbol(symbol)
        return self.graphs[symbol]

    def signature(self, symbol: str) -> Signature:
        return self.graph(symbol).signature()

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        graph = self.graph(symbol)
        expected = [(spec.evaluate(values), spec.dtype) for spec in graph.signature().tensors]
        found = [(arg.shape, arg.dtype) for arg in args]
        if found != expected:
            raise corrupted(f"call of {symbol}", found, f"{expected}")
        return self.build(graph, args, values, context)

    @abstractmethod
    def build(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the steps that run `graph` over `args` (inputs, then outputs), whose shapes have been checked."""
