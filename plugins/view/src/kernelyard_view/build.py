"""A build: a model as it was compiled, with what was measured of it, read from any file that has some of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelyard.runtime.report import Node, Report


@dataclass(frozen=True)
class StepRow:
    """A step of the program. nodes: of the report, by number. inside: label, implementation and seconds of parts."""

    label: str
    module: str
    symbol: str
    seconds: float
    nbytes: int
    flops: int | None
    nodes: tuple[int, ...]
    inside: tuple[tuple[str, str, float], ...] = ()


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


def errors_of_nodes(nodes: Sequence[Node], errors: Mapping[str, float]) -> list[float | None]:
    """Return each node's error: that of its name, None where none is known.

    Example:
        >>> errors_of_nodes([], {"conv1": 0.5})
        []
    """
    last = {node.name: number for number, node in enumerate(nodes)}  # a layer's result is that of its last op
    return [errors.get(node.name) if last[node.name] == number else None for number, node in enumerate(nodes)]
