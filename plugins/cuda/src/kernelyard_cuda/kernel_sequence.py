"""Graphs of several kernels: each is built by itself, and all run in order on the device's one stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from kernelyard.runtime.api import (
    BindContext,
    BoundCall,
    BoundTensor,
    DeviceMemory,
    JSONGraph,
    JSONNode,
    JSONRuntime,
    corrupted,
    nbytes_of,
)
from kernelyard_cuda.device_constants import DeviceConstants
from kernelyard_cuda.driver_api import CudaDriver, require_cuda

Entry = tuple[int, int]
Move = Callable[[int], None]


class Part(NamedTuple):
    """A kernel as a graph of its own; sources: values of the whole graph that it reads; result: the one it gives."""

    graph: JSONGraph
    sources: tuple[Entry, ...]
    result: Entry


class KernelSequence(JSONRuntime):
    """A module of graphs of one kernel each, or of several, as merged regions have them; a subclass builds one kernel.

    What one kernel hands to the next lies in memory of the device that belongs to the bound call. kernels: the node of
    each graph of one kernel, by its symbol. Raises: ArtifactCorruptedError for a graph that gives something else.
    """

    device_kind: ClassVar[str] = "cuda"
    is_capturable: ClassVar[bool] = True
    native_hint: ClassVar[str] = "kernelyard.load the library in Python: programs on a GPU are run by it alone"

    def __init__(self, graphs: Sequence[JSONGraph], constants: Mapping[str, np.ndarray]) -> None:
        super().__init__(graphs, constants)
        self._parts = {graph.symbol: parts_of(graph) for graph in graphs}
        self._part_graphs = {part.graph.symbol: part.graph for parts in self._parts.values() for part in parts}
        self.kernels = {symbol: only_kernel(graph) for symbol, graph in self._part_graphs.items()}
        self.device_constants = DeviceConstants(self.constants())

    def part_graph(self, symbol: str) -> JSONGraph:
        """Return one of them by its symbol. Raises: ExecutionError."""
        if symbol not in self._part_graphs:
            raise self.unknown_symbol(symbol)
        return self._part_graphs[symbol]

    def operand(self, graph: JSONGraph, number: int, args: Sequence[BoundTensor], device: CudaDriver) -> BoundTensor:
        """Return an input or a constant of a graph, by the number of its node, in the device's memory."""
        node = graph.nodes[number]
        if node.kind == "input":
            return args[node.index]
        address = self.device_constants.on(device, node.digest).address
        return BoundTensor(address, self.constants()[node.digest].shape, node.outputs[0].dtype)

    @abstractmethod
    def build_kernel(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the steps that run a graph of one kernel, as `build` does."""

    def build(
        self, graph: JSONGraph, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the calls of a graph's kernels, in order. Raises: DeviceError, and what building a kernel raises."""
        parts = self._parts[graph.symbol]
        if len(parts) == 1:
            return self.build_kernel(graph, args, values, context)
        device = require_cuda(context.device, graph.symbol)
        numbers = _arguments(graph)
        tensors = {entry: args[number] for entry, number in numbers.items()}
        held: list[object] = []
        calls: list[BoundCall] = []
        for part in parts:
            if part.result not in tensors:
                tensors[part.result] = _intermediate(graph, part.result, values, device, held)
            own = [tensors[entry] for entry in (*part.sources, part.result)]
            calls.append(self.build_kernel(part.graph, own, values, replace(context, num_outputs=1)))
        steps = [step for call in calls for step in call.steps]
        kept = [*held, *(each for call in calls for each in call.keep)]
        return BoundCall(steps, kept, _movable(numbers, parts, calls))


def only_kernel(graph: JSONGraph) -> JSONNode:
    """Return the kernel of a graph: it is all that the graph computes, and gives. Raises: ArtifactCorruptedError."""
    kernels = [number for number, node in enumerate(graph.nodes) if node.kind == "kernel"]
    if len(kernels) != 1 or graph.outputs != ((kernels[0], 0),):
        raise corrupted(graph.symbol, f"{len(kernels)} kernels, results {graph.outputs}", "one kernel and its result")
    return graph.nodes[kernels[0]]


def parts_of(graph: JSONGraph) -> tuple[Part, ...]:
    """Return the kernels of a graph, in order; the graph itself where it has one, or none.

    Raises: ArtifactCorruptedError for several kernels with results that are none of theirs.
    """
    kernels = [(number, 0) for number, node in enumerate(graph.nodes) if node.kind == "kernel"]
    if len(kernels) < 2:
        return (Part(graph, (), (0, 0)),)
    if len(set(graph.outputs)) != len(graph.outputs) or not set(graph.outputs) <= set(kernels):
        raise corrupted(graph.symbol, f"results {graph.outputs}", "results of kernels, each once")
    return tuple(_part(graph, entry) for entry in kernels)


def _part(graph: JSONGraph, result: Entry) -> Part:
    node = graph.nodes[result[0]]
    read = dict.fromkeys(entry for _, entry in node.inputs)
    sources = tuple(entry for entry in read if graph.nodes[entry[0]].kind != "constant")
    constants = tuple(entry for entry in read if graph.nodes[entry[0]].kind == "constant")
    inputs = tuple(graph.spec(entry) for entry in sources)
    before = [JSONNode("input", (spec,), index=index) for index, spec in enumerate(inputs)]
    before += [graph.nodes[number] for number, _ in constants]
    places = {entry: (number, 0) for number, entry in enumerate((*sources, *constants))}
    kernel = replace(node, inputs=tuple((role, places[entry]) for role, entry in node.inputs))
    symbol = f"{graph.symbol}.{result[0]}"
    return Part(JSONGraph(symbol, inputs, (*before, kernel), ((len(before), 0),)), sources, result)


def _arguments(graph: JSONGraph) -> dict[Entry, int]:
    """Return the numbers of the arguments, inputs and then results, by the values that they are."""
    inputs = {(number, 0): node.index for number, node in enumerate(graph.nodes) if node.kind == "input"}
    return {**inputs, **{entry: len(graph.inputs) + i for i, entry in enumerate(graph.outputs)}}


def _intermediate(
    graph: JSONGraph, entry: Entry, values: Mapping[str, int], device: CudaDriver, held: list[object]
) -> BoundTensor:
    spec = graph.spec(entry)
    shape = spec.evaluate(values)
    held.append(memory := DeviceMemory(device, nbytes_of(shape, spec.dtype)))
    return BoundTensor(memory.address, shape, spec.dtype)


def _movable(numbers: Mapping[Entry, int], parts: Sequence[Part], calls: Sequence[BoundCall]) -> dict[int, Move]:
    """Return the functions that rebind arguments for all kernels, by the argument's index; only those that every kernel
    can rebind.
    """
    moves: dict[int, list[Move | None]] = {}
    for part, call in zip(parts, calls, strict=True):
        for place, entry in enumerate((*part.sources, part.result) if call.steps else ()):
            if entry in numbers:
                moves.setdefault(numbers[entry], []).append(call.rebind.get(place))
    return {number: _collect([m for m in each if m]) for number, each in moves.items() if None not in each}


def _collect(moves: Sequence[Move]) -> Move:
    def move(address: int) -> None:
        for each in moves:
            each(address)

    return move
