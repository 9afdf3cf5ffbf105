"""Entries of a report: what runs where, what was declined and what failed, and how they are read from JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelyard.records import record
from kernelyard.runtime.abi.spec import MAX_ITEMS, Fields

MAX_COUNT = 1 << 62


@record
class PlacedRegion:
    """A group of ops that a backend took: one match of one pattern.

    function: the symbol of the region that it is part of. node: the model's node that the result comes from.
    fallback: kernels that run where the backend's library refuses that region at run time; none where it never does.
    """

    backend: str
    pattern: str
    ops: tuple[str, ...]
    function: str
    node: str
    fallback: tuple[str, ...] = ()


@record
class DeclinedMatch:
    """A match that was refused. taken_by: the backend that took its op all the same, "" when none did."""

    backend: str
    pattern: str
    node: str
    op: str
    code: str
    message: str
    taken_by: str = ""


@record
class Placed:
    """The number of calls of an op on a backend, and their estimated FLOPs and bytes read and written."""

    backend: str
    op: str
    count: int
    flops: int
    bytes: int


@record
class Kernel:
    """A kernel that no library has, and the ops that were fused into it.

    calls: how many calls of it there are in the model. custom: names of the users' own kernels that are in it.
    """

    backend: str
    name: str
    ops: tuple[str, ...]
    calls: int = 1
    custom: tuple[str, ...] = ()


@record
class Violation:
    """A backend accepted regions that its codegen then failed on; they run elsewhere."""

    backend: str
    functions: tuple[str, ...]
    message: str


@record
class Reason:
    """Why a backend that has a pattern ending in an op does not run it. pattern: the one that came nearest, or ""."""

    backend: str
    pattern: str
    code: str
    message: str


@record
class Node:
    """One op of the model: who runs it, and why the others do not.

    inputs: numbers of the nodes whose results it reads; reads: inputs of the model that it reads; gives: outputs of the
    model that it makes. pattern and function: of the region that it is part of, "" for what no library took.
    """

    entry: str
    name: str
    op: str
    type: str
    backend: str
    pattern: str
    function: str
    group: int
    flops: int
    bytes: int
    inputs: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()


READERS: dict[str, Callable[[Fields], Any]] = {
    "placed": lambda f: Placed(
        f.text("backend"), f.text("op"), *(f.integer(name, most=MAX_COUNT) for name in ("count", "flops", "bytes"))
    ),
    "regions": lambda f: PlacedRegion(
        f.text("backend"),
        f.text("pattern"),
        f.texts("ops"),
        f.text("function"),
        f.text("node"),
        f.texts("fallback") if "fallback" in f else (),
    ),
    "declined": lambda f: DeclinedMatch(
        *(f.text(name) for name in ("backend", "pattern", "node", "op", "code", "message", "taken_by"))
    ),
    "kernels": lambda f: Kernel(
        f.text("backend"), f.text("name"), f.texts("ops"), f.integer("calls", most=MAX_COUNT), f.texts("custom")
    ),
    "violations": lambda f: Violation(f.text("backend"), f.texts("functions"), f.text("message")),
    "nodes": lambda f: _node(f),
}


def _node(fields: Fields) -> Node:
    return Node(
        entry=fields.text("entry"),
        name=fields.text("name"),
        op=fields.text("op"),
        type=fields.text("type"),
        backend=fields.text("backend"),
        pattern=fields.text("pattern"),
        function=fields.text("function"),
        group=fields.integer("group", most=MAX_COUNT),
        flops=fields.integer("flops", most=MAX_COUNT),
        bytes=fields.integer("bytes", most=MAX_COUNT),
        inputs=fields.indices("inputs", MAX_ITEMS),
        reads=fields.texts("reads"),
        gives=fields.texts("gives"),
        reasons=fields.each("reasons", lambda item, where: _reason(Fields(item, where))),
    )


def _reason(fields: Fields) -> Reason:
    return Reason(*(fields.text(name) for name in ("backend", "pattern", "code", "message")))
