"""Placements region by region: what each backend was measured to take for its parts, put together at the least cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.placement_decision import ASSIGNED, PlacementDecision
from kernelyard.runtime.profiling.profile import Profile, StepTime
from kernelyard.runtime.profiling.profiler import profile
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import Node
from kernelyard.runtime.report_words import VIEW
from kernelyard_tune.search import Kernel, Problem, search

CALL_SECONDS = 1e-6  # of a region: its library is entered and left
HAND_OVERS = (1.0, 4.0, 0.25)  # what a hand-over costs, as factors: its estimate is the least certain
COPIED_BYTES = 1 << 22


@dataclass(frozen=True)
class Measured:
    """Hold the report of a whole placement, and the times of its steps."""

    report: Report
    profile: Profile


def measure_steps(executable: Executable, feeds: Mapping[str, np.ndarray], calls: int) -> Measured:
    """Return the times of a program's steps, in place: between those that it has, in the layouts that these leave."""
    return Measured(executable.report, profile(executable, feeds, calls))


def region_candidates(measured: Sequence[Measured], generator: str, backends: Sequence[str]) -> list[PlacementDecision]:
    """Return placements that mix backends, each the cheapest for another guess of what it costs to hand values over.

    measured: whole placements, the simplest first. generator: the name of what runs the rest. There are none
    for a model in which two operators have one key.
    """
    graph = _Graph(measured[0].report.nodes)
    if not graph.is_ordered:
        return []
    kernels = [kernel for each in measured for kernel in graph.kernels(each)]
    covered = frozenset[int]().union(*(kernel.ops for kernel in kernels))
    kernels += [Kernel(generator, frozenset({op}), 0.0) for op in range(len(graph.keys)) if op not in covered]
    found: dict[str, PlacementDecision] = {}
    seconds_of_byte = _copy_seconds()
    for factor in HAND_OVERS:
        edges = {edge: factor * (CALL_SECONDS + nbytes * seconds_of_byte) for edge, nbytes in graph.edges.items()}
        solution = search(Problem(len(graph.keys), edges, kernels))
        if solution is not None:
            assigned = graph.assign_backends(solution.kernels, backends)
            name = f"by region {len(found) + 1}"
            used = tuple(name for name in backends if name in assigned.values())
            found.setdefault(repr(assigned), PlacementDecision(name, used, ASSIGNED, assigned))
    return list(found.values())


class _Graph:
    """Number the operators of a report by key, which is the same in every placement of a model. Views cost nothing, and
    are left out.

    edges: bytes that are handed over, at most: no more than either operator moves. views: keys of those in a kernel.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.keys = list(dict.fromkeys(_key(node) for node in nodes if node.backend != VIEW))
        self.number = {key: i for i, key in enumerate(self.keys)}
        self.nodes = nodes
        self.views: dict[Kernel, set[str]] = {}
        self.edges: dict[tuple[int, int], int] = {}
        for node in nodes:
            for source in _sources(nodes, node) if node.backend != VIEW else ():
                edge = self.number[_key(source)], self.number[_key(node)]
                self.edges[edge] = max(self.edges.get(edge, 0), min(source.bytes, node.bytes))

    @property
    def is_ordered(self) -> bool:
        """Tell if each operator reads earlier ones alone: not so where operators share a key."""
        return all(source < target for source, target in self.edges)

    def kernels(self, measured: Measured) -> Iterator[Kernel]:
        """Yield what a placement's steps compute, and in what time; of a library's region its parts, too."""
        nodes = measured.report.nodes
        for step in measured.profile.steps:
            yield from self._kernel(nodes, step.nodes, step.seconds)
            yield from self._parts(nodes, step)

    def _parts(self, nodes: Sequence[Node], step: StepTime) -> Iterator[Kernel]:
        """Yield the groups of a region, with all of its time shared out; what runs with others costs nothing more."""
        timed = sum(part.seconds for part in step.inside if part.nodes)
        if not timed:
            return
        seconds: dict[int, float] = {}
        for part in step.inside:
            if part.nodes:
                group = nodes[part.nodes[-1]].group
                seconds[group] = seconds.get(group, 0.0) + part.seconds * step.seconds / timed
        groups: dict[int, list[int]] = {}
        for number in step.nodes:
            groups.setdefault(nodes[number].group, []).append(number)
        for group, members in groups.items():
            yield from self._kernel(nodes, members, seconds.get(group, 0.0))

    def _kernel(self, nodes: Sequence[Node], members: Sequence[int], seconds: float) -> Iterator[Kernel]:
        computed = [nodes[number] for number in members]
        ops = frozenset(self.number[_key(node)] for node in computed if _key(node) in self.number)
        owners = {node.backend for node in computed} - {VIEW}
        if ops and len(owners) == 1:
            kernel = Kernel(owners.pop(), ops, seconds)
            self.views.setdefault(kernel, set()).update(
                _key(node) for node in computed if _key(node) not in self.number
            )
            yield kernel

    def assign_backends(self, kernels: Sequence[Kernel], backends: Sequence[str]) -> dict[str, str]:
        """Return the backend of each operator that a library runs, and of the views in its kernels and behind them."""
        owner = {key: each.backend for each in kernels for key in self.views.get(each, ())}
        owner |= {self.keys[op]: each.backend for each in kernels for op in each.ops}
        for node in self.nodes:
            sources = {owner.get(_key(self.nodes[source])) for source in node.inputs}
            if node.backend == VIEW and len(sources) == 1 and (name := sources.pop()) is not None:
                owner.setdefault(_key(node), name)
        return {key: name for key, name in owner.items() if name in backends}


def _key(node: Node) -> str:
    """Return the operator's `kernelyard.placement.policy.node_key`."""
    return f"{node.name} {node.op}"


def _sources(nodes: Sequence[Node], node: Node) -> Iterator[Node]:
    """Yield what an operator reads, through views."""
    for number in node.inputs:
        source = nodes[number]
        if source.backend == VIEW:
            yield from _sources(nodes, source)
        else:
            yield source


def _copy_seconds() -> float:
    """Return the seconds that this machine takes to copy a byte between buffers."""
    source = np.zeros(COPIED_BYTES, np.uint8)
    target = np.empty_like(source)
    least = 1.0
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        least = min(least, time.perf_counter() - start)
    return least / COPIED_BYTES
