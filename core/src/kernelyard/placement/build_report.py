"""Builds the Report of a partitioned module: its nodes, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from kernelyard.ir import IRModule
from kernelyard.placement.nodes import nodes_of
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.rest import Rest
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import Kernel, Node, Placed, PlacedRegion
from kernelyard.runtime.report_words import VIEW

REST = "rest"  # in place of a backend: ops of which nobody said who runs them


def build_report(
    module: IRModule,
    recorder: Recorder,
    target: str = "cpu",
    rest: Rest | None = None,
    kernels: Sequence[Kernel] = (),
    precision: str = "float32",
) -> Report:
    """Return the report of a module after partitioning, before `RunCodegen`.

    rest: who runs the ops that no backend took; without it they are of `REST`. Regions whose codegen failed (recorded
    violations) count among them.
    """
    nodes = nodes_of(module, recorder, rest.owner if rest is not None else lambda _: REST)
    return Report(
        target,
        placed=tuple(_rows(nodes)),
        regions=tuple(_regions(nodes)),
        declined=recorder.list_declined_matches(),
        kernels=tuple(kernels),
        violations=tuple(recorder.violations),
        nodes=nodes,
        precision=precision,
    )


def add_fallbacks(report: Report, fallbacks: Mapping[str, tuple[str, ...]]) -> Report:
    """Return the report with the kernels that run where a backend refuses a region, by the region's symbol."""
    regions = tuple(replace(each, fallback=fallbacks.get(each.function, ())) for each in report.regions)
    return replace(report, regions=regions)


def _rows(nodes: Sequence[Node]) -> Iterator[Placed]:
    """Work by backend and op: backends of regions in order of appearance, then the rest, then views."""
    table: dict[tuple[str, str], list[int]] = {}
    rank: dict[str, int] = {}
    for node in nodes:
        row = table.setdefault((node.backend, node.op), [0, 0, 0])
        for i, amount in enumerate((1, node.flops, node.bytes)):
            row[i] += amount
        kind = 0 if node.pattern else 2 if node.backend == VIEW else 1
        rank[node.backend] = min(kind, rank.get(node.backend, kind))
    for backend in sorted(rank, key=lambda name: rank[name]):
        yield from (Placed(owner, op, *work) for (owner, op), work in table.items() if owner == backend)


def _regions(nodes: Sequence[Node]) -> Iterator[PlacedRegion]:
    """Yield one for each group that a backend took; it is called what its last op is."""
    for _, members in groupby(nodes, key=lambda node: node.group):
        group = list(members)
        last = group[-1]
        if last.pattern:
            ops = tuple(node.op for node in group)
            yield PlacedRegion(last.backend, last.pattern, ops, last.function, last.name)
