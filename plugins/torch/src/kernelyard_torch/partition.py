"""Partition a graph: what can be expressed is compiled in as few parts as may be, PyTorch runs the nodes between."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode

from kernelyard_torch.eager_values import is_number, is_random
from kernelyard_torch.graph_outputs import size_hint

FOURIER = ("aten._fft_c2c.default", "aten._fft_c2r.default", "aten._fft_r2c.default")
# Fourier transforms are products with matrices here: beyond this length PyTorch's fast ones take less than half of the
# time (1.7 and 4.4 times at 128 and 256 elements on AVX2).
LONGEST_TRANSFORM = 128


@dataclass(frozen=True)
class Part:
    """A part of a graph: its nodes as a graph of their own.

    inputs, outputs: nodes of the whole graph, in the order in which the part takes and gives their values. is_eager:
    PyTorch runs it. size: how many of its nodes compute tensors.
    """

    graph: GraphModule
    inputs: tuple[FxNode, ...]
    outputs: tuple[FxNode, ...]
    is_eager: bool
    size: int


def partition(whole: GraphModule, rejected: set[FxNode]) -> list[Part]:
    """Return the parts of a graph in the order in which they run; those with rejected nodes are PyTorch's.

    Each node is in the earliest part that has its operands, and random numbers are drawn in the graph's order. Numbers
    are computed anew in each part that reads them, and those that the graph returns in a last one.
    """
    stages = _stages(whole, rejected)
    (output,) = (node for node in whole.graph.nodes if node.op == "output")
    parts: list[Part] = []
    for stage in sorted(set(stages.values())):
        nodes = {node for node, own in stages.items() if own == stage}
        given = [n for n in whole.graph.nodes if n in nodes and any(is_number(u) or u not in nodes for u in n.users)]
        parts.append(_part(whole, nodes, given, is_eager=stage % 2 == 1))
    numbers = [node for node in output.all_input_nodes if is_number(node)]
    return [*parts, _part(whole, set(), numbers, is_eager=True)] if numbers else parts


def find_slower_nodes(whole: GraphModule) -> set[FxNode]:
    """Return the nodes that PyTorch runs faster: Fourier transforms of long axes."""
    return {n for n in whole.graph.nodes if str(n.target) in FOURIER and _transformed_length(n) > LONGEST_TRANSFORM}


def _transformed_length(node: FxNode) -> int:
    """Return the longest axis of a Fourier transform; one side has but half of the last where numbers are real."""
    source, axes = node.args[0], node.args[1]
    return max(size_hint(side.meta["val"].shape[axis]) for side in (source, node) for axis in axes)  # pyright: ignore


def _stages(whole: GraphModule, rejected: set[FxNode]) -> dict[FxNode, int]:
    """Return for each node that computes tensors its part: even ones are compiled, odd ones are PyTorch's."""
    stages: dict[FxNode, int] = {}
    last_random = 0
    for node in whole.graph.nodes:
        if node.op != "call_function" or is_number(node):
            continue
        least = max((stages.get(read, 0) for read in _tensors_of(node)), default=0)
        if node.target is operator.getitem:  # of what gives several tensors
            stages[node] = least
            continue
        least = max(least, last_random) if is_random(node) else least
        stages[node] = least + (least % 2 != (node in rejected))
        last_random = stages[node] if is_random(node) else last_random
    return stages


def _part(whole: GraphModule, nodes: set[FxNode], given: Sequence[FxNode], is_eager: bool) -> Part:
    inside = nodes.union(*map(_find_numbers, (*nodes, *given)))
    inside |= {read for read in _read_by(inside) if read.op == "get_attr"}
    reads = _read_by(inside) - inside
    # Sizes that the graph takes may be what tells those of the part's tensors.
    inputs = [n for n in whole.graph.nodes if n in reads or (n.op == "placeholder" and is_number(n))]
    graph = Graph()
    copies: dict[FxNode, FxNode] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in whole.graph.nodes:
        if node in inside:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in given))
    return Part(GraphModule(whole, graph), tuple(inputs), tuple(given), is_eager, len(nodes))


def _read_by(nodes: Iterable[FxNode]) -> set[FxNode]:
    return {read for node in nodes for read in node.all_input_nodes}


def _find_numbers(node: FxNode) -> Iterable[FxNode]:
    """Give the numbers that a node is computed from, itself included, up to tensors and what the graph takes."""
    waiting = [node] if is_number(node) else [read for read in node.all_input_nodes if is_number(read)]
    while waiting:
        number = waiting.pop()
        if number.op != "placeholder":
            yield number
            waiting += [read for read in number.all_input_nodes if is_number(read)]


def _tensors_of(node: FxNode) -> Iterable[FxNode]:
    """Give the tensors that a node reads, and those that the numbers which it reads are computed from."""
    for reader in (node, *_find_numbers(node)):
        yield from (read for read in reader.all_input_nodes if not is_number(read))
