"""A build: a model as it was compiled, with what was measured of it, read from any file that has some of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import Node


@dataclass(frozen=True)
class PartRow:
    """Describe a part of a step inside a library. nodes: of the report, by number, that it is done for."""

    label: str
    implementation: str
    seconds: float
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepRow:
    """A step of the program. nodes: of the report, by number."""

    label: str
    module: str
    symbol: str
    seconds: float
    nbytes: int
    flops: int | None
    nodes: tuple[int, ...]
    inside: tuple[PartRow, ...] = ()


@dataclass(frozen=True)
class Buffer:
    """A buffer of the memory plan: where it lies in the arena, and the first and last step that need it."""

    label: str
    offset: int
    nbytes: int
    first: int
    last: int
    is_input: bool = False


@dataclass(frozen=True)
class MemoryMap:
    """The arena of a call over its steps. weights: bytes of the constants beside it."""

    nbytes: int
    weights: int
    steps: tuple[str, ...]
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class PassChange:
    """A pass that changed the module. lines: of a unified diff, without its head. more: lines that were left out."""

    name: str
    seconds: float
    added: int
    removed: int
    lines: tuple[str, ...]
    more: int = 0


@dataclass(frozen=True)
class Build:
    """A model as it was compiled. errors: of nodes by name, relative; roof: gflops and gbytes of the machine."""

    title: str
    report: Report
    steps: tuple[StepRow, ...] = ()
    call_seconds: float = 0.0
    memory: MemoryMap | None = None
    passes: tuple[PassChange, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    roof: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """The smallest piece of work that was timed and has an op in it: `count` ops in `seconds`."""

    seconds: float
    count: int


def shares_of_nodes(count: int, steps: Sequence[StepRow]) -> list[Share | None]:
    """Return for each of so many nodes the library's parts that compute it, else the step; None where neither is known.

    Example:
        >>> shares_of_nodes(2, [StepRow("y", "acme", "f", 0.5, 8, None, (1,))])
        [None, Share(seconds=0.5, count=1)]
    """
    shares: list[Share | None] = [None] * count
    for step in steps:
        is_told = any(part.nodes for part in step.inside)  # then what no part computes is a view, and takes no time
        for node in step.nodes:
            shares[node] = Share(0.0, 1) if is_told else Share(step.seconds, len(step.nodes))
        seconds: dict[tuple[int, ...], float] = {}
        for part in step.inside:  # a group may take several: reorders, then the product
            seconds[part.nodes] = seconds.get(part.nodes, 0.0) + part.seconds
        for nodes, taken in seconds.items():
            for node in nodes:
                shares[node] = Share(taken, len(nodes))
    return shares


def errors_of_nodes(nodes: Sequence[Node], errors: Mapping[str, float]) -> list[float | None]:
    """Return each node's error: that of its name, None where none is known.

    Example:
        >>> errors_of_nodes([], {"conv1": 0.5})
        []
    """
    last = {node.name: number for number, node in enumerate(nodes)}  # a layer's result is that of its last op
    return [errors.get(node.name) if last[node.name] == number else None for number, node in enumerate(nodes)]
