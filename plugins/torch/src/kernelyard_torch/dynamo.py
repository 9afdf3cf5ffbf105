"""torch.compile(model, backend="kernelyard"): what TorchDynamo captures runs as compiled programs.

What cannot be expressed of a graph, and a graph that gradients are wanted of, is left to PyTorch, with a warning that
says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from kernelyard.errors import KernelyardError, PerformanceWarning, warn_caller
from kernelyard_torch.compile_options import CompileOptions
from kernelyard_torch.compiled_graph import CompiledGraph, find_rejected_nodes
from kernelyard_torch.decompositions import inference_decompositions
from kernelyard_torch.partition import find_slower_nodes
from kernelyard_torch.partitioned_graph import PartitionedGraph

Compiled = Callable[..., Any]

# TorchDynamo looks at every frame of a function that it compiles, the weakref callback included by which the memory of
# a result returns to its pool: it leaves ours alone.
for _package in ("kernelyard", "kernelyard_torch"):
    trace_rules.add(_package)


def kernelyard(
    graph: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Return the backend, as TorchDynamo calls it.

    options, as `torch.compile(model, backend="kernelyard", options={...})` takes them: see `CompileOptions`. Inference
    alone: use `torch.no_grad()`; where gradients are wanted PyTorch runs the graph.
    Raises: OptionError. Warns: PerformanceWarning where a graph is left to PyTorch.
    """
    chosen = CompileOptions.of(options, mode)
    compiler = aot_autograd(
        fw_compiler=_leave_for_gradients,
        inference_compiler=lambda graph, inputs: _compile(graph, inputs, chosen),
        decompositions=inference_decompositions(),
    )
    return compiler(graph, inputs)  # pyright: ignore[reportReturnType]


def _compile(graph: GraphModule, inputs: Sequence[Any], options: CompileOptions) -> Compiled:
    slower = find_slower_nodes(graph)
    try:
        whole = CompiledGraph(graph, inputs, options)
    except KernelyardError as error:
        parts = PartitionedGraph(graph, inputs, options, slower | find_rejected_nodes(graph, inputs))
        count = len(parts.compiled)
        how = f"is compiled in {count} part{'s' if count > 1 else ''} around" if count else "falls back to"
        _warn(f"a graph of {len(graph.graph.nodes)} nodes {how} eager PyTorch: {error.message}")
    else:
        if not slower:
            return _box(whole)
        parts = PartitionedGraph(graph, inputs, options, slower)
    return _box(parts if parts.compiled else graph.forward)


def _leave_for_gradients(graph: GraphModule, inputs: Sequence[Any]) -> Compiled:
    """Return the forward and backward graphs of training."""
    _warn("a graph that requires gradients falls back to eager PyTorch: use torch.no_grad() or torch.inference_mode()")
    return _eager(graph)


def _eager(graph: GraphModule) -> Compiled:
    return _box(graph.forward)


def _box(function: Compiled) -> Compiled:
    """Return a function of a list of arguments, which it empties, as AOTAutograd calls it."""

    def call(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        return function(*given)

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _warn(message: str) -> None:
    warn_caller(message, PerformanceWarning)
