"""Values of a captured graph that PyTorch computes when it is called.

Random tensors, so that its seed decides them, and numbers that are returned and that sizes alone decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode


class EagerValues:
    """Nodes of a graph that PyTorch computes from the graph's arguments before the program runs.

    Call it with the graph's arguments: it gives the nodes' values, in order.
    """

    def __init__(self, graph_module: GraphModule, nodes: Sequence[FxNode]) -> None:
        self.nodes = list(nodes)
        self._graph = _copy_graph(graph_module, self.nodes) if self.nodes else None

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        return [] if self._graph is None else list(self._graph(*arguments))


def random_tensors(graph_module: GraphModule) -> list[FxNode]:
    """Return the nodes that draw random numbers, as many as sizes alone decide."""
    return [n for n in graph_module.graph.nodes if is_random(n) and _depends_on_sizes_alone(n.all_input_nodes)]


def find_returned_sizes(graph_module: GraphModule) -> list[FxNode]:
    """Return the numbers among a graph's results that its sizes alone decide, such as the length of a grown cache."""
    (output,) = (node for node in graph_module.graph.nodes if node.op == "output")
    return [node for node in output.all_input_nodes if is_number(node) and _depends_on_sizes_alone([node])]


def symbols_of_tensors(graph_module: GraphModule) -> set[sympy.Symbol]:
    """Return the symbols that some tensor of a graph has in its sizes, or is computed with."""
    found: set[sympy.Symbol] = set()
    for node in graph_module.graph.nodes:
        if not is_number(node) and node.op != "output":
            found.update(*map(_symbols, (node, *node.all_input_nodes)))
    return found


def _depends_on_sizes_alone(nodes: Sequence[FxNode]) -> bool:
    """Return True for numbers, and memory yet to be filled, on the way to which no tensor is computed."""
    plain = (n for n in _ancestors(nodes) if n.target is not torch.ops.aten.empty_permuted.default)
    return all(is_number(n) or (n.op == "placeholder" and n not in nodes) for n in plain)


def is_random(node: FxNode) -> bool:
    """Return True for a node that draws random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def is_number(node: FxNode) -> bool:
    """Return True for a node that gives a number, no tensor."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _symbols(node: FxNode) -> set[sympy.Symbol]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    sizes = [s for each in values for s in (each.shape if isinstance(each, torch.Tensor) else [each])]
    expressions = [s.node.expr for s in sizes if isinstance(s, (torch.SymInt, torch.SymFloat, torch.SymBool))]
    return {symbol for expression in expressions for symbol in expression.free_symbols}


def _ancestors(nodes: Sequence[FxNode]) -> Iterator[FxNode]:
    """Give some nodes and everything that they are computed from, each once."""
    seen: set[FxNode] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
            yield node


def _copy_graph(graph_module: GraphModule, nodes: Sequence[FxNode]) -> GraphModule:
    """Return a graph that takes the same arguments and gives these nodes' results alone."""
    needed = set(_ancestors(nodes))
    graph = Graph()
    copies: dict[FxNode, FxNode] = {}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in nodes))
    return GraphModule(graph_module, graph)
