"""Random numbers of a captured graph: PyTorch draws them when the graph is called, so that its seed decides them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode


def is_random(node: FxNode) -> bool:
    """Return True for a node that draws random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


class RandomInputs:
    """The tensors of random numbers in a graph whose sizes are known when it is called.

    nodes: those that make them, in order. Call it with the graph's arguments: it gives the tensors.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        nodes = [node for node in graph_module.graph.nodes if is_random(node)]
        self.nodes = [node for node in nodes if all(map(_is_size, node.all_input_nodes))]
        self._graph = _drawing(graph_module, self.nodes) if self.nodes else None

    def __call__(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        return [] if self._graph is None else list(self._graph(*arguments))


def _is_size(node: FxNode) -> bool:
    """Return True for a node computed from the graph's sizes alone."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return all(_is_size(given) or given.op == "placeholder" for given in node.all_input_nodes)


def _drawing(graph_module: GraphModule, nodes: Sequence[FxNode]) -> GraphModule:
    """Return a graph that takes the same arguments and makes nothing but some nodes' results."""
    needed: set[FxNode] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    graph = Graph()
    copies: dict[FxNode, FxNode] = {}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in nodes))
    return GraphModule(graph_module, graph)
