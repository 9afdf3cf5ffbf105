"""PartitionedGraph: a graph that is compiled in parts, PyTorch running the nodes between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule
from torch.fx import Node as FxNode

from kernelyard.errors import KernelyardError
from kernelyard_torch.compile_options import CompileOptions
from kernelyard_torch.compiled_graph import CompiledGraph, find_frozen_positions
from kernelyard_torch.partition import Part, partition

WORTHWHILE = 4  # a part with fewer nodes is left to PyTorch


class PartitionedGraph:
    """Run a graph whose nodes cannot all be expressed: call it with what it takes.

    parts: in the order in which they run. compiled: those that are not left to PyTorch.
    """

    def __init__(
        self, graph: GraphModule, inputs: Sequence[Any], options: CompileOptions, rejected: set[FxNode]
    ) -> None:
        self._placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        self._given: Sequence[Any] = output.args[0]
        known = dict(zip(self._placeholders, inputs, strict=True))
        frozen = (
            {self._placeholders[position] for position in find_frozen_positions(inputs)} if options.freeze else set()
        )
        self.parts = partition(graph, rejected)
        self._runs = [_run(part, known, frozen, options) for part in self.parts]
        self.compiled = [run for run in self._runs if isinstance(run, CompiledGraph)]

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Run the parts one after the other, on torch's tensors and numbers."""
        values = dict(zip(self._placeholders, arguments, strict=True))
        for part, run in zip(self.parts, self._runs, strict=True):
            results = run(*(values[node] for node in part.inputs))
            values |= zip(part.outputs, results, strict=True)
        return [values[each] if isinstance(each, FxNode) else each for each in self._given]


def _run(
    part: Part, known: dict[FxNode, Any], frozen: set[FxNode], options: CompileOptions
) -> Callable[..., Sequence[Any]]:
    if part.is_eager or part.size < WORTHWHILE:
        return part.graph.forward
    inputs = [known.get(node, node.meta.get("val")) for node in part.inputs]
    try:
        return CompiledGraph(part.graph, inputs, options, [i for i, n in enumerate(part.inputs) if n in frozen])
    except KernelyardError:  # what cannot be said of a part alone
        return part.graph.forward
