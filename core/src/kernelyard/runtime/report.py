"""Report: what runs where, and what was declined by whom and why. Saved with the artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kernelyard.cached_property import cached_property
from kernelyard.records import record
from kernelyard.runtime.abi.spec import Fields
from kernelyard.runtime.placement_decision import PlacementDecision
from kernelyard.runtime.report_entries import (
    READERS,
    DeclinedMatch,
    Kernel,
    Node,
    Placed,
    PlacedRegion,
    Reason,
    Violation,
)
from kernelyard.runtime.report_words import EXCLUDED, NO_MATCH, ON_HOST, SYMBOL_SIZE, TAKEN, explain_words
from kernelyard.runtime.text_table import align_rows, amount, fold

MAX_NAMED = 8  # functions of a violation that the table names; `violations` has all
MAX_LISTED = 40  # declines and reasons that a table shows; `declined` and `nodes` have all
MAX_NODES = 3  # nodes that a reason names; `nodes` has all


@record
class Report:
    """Report of a compile: the backend of every op, and the reasons.

    placed: every op of the model by backend, library backends first and views last. nodes: every op by itself, in the
    order in which they run. precision: what `compile` was asked for. pipeline: how that of the compile differs from the
    default. decision: the measured placement that was applied. Estimates take each symbolic dim as 64.

    Example:
        >>> report = Report("cpu", placed=(Placed("acme", "matmul", 2, 90, 8), Placed("native-cpu", "exp", 1, 10, 8)))
        >>> print(report.summary)
        acme 2/3 ops (90 % of FLOPs) · native-cpu 1
        >>> report.coverage["acme"]["flops_fraction"]
        0.9
    """

    target: str
    placed: tuple[Placed, ...] = ()
    regions: tuple[PlacedRegion, ...] = ()
    declined: tuple[DeclinedMatch, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    violations: tuple[Violation, ...] = ()
    nodes: tuple[Node, ...] = ()
    precision: str = "float32"
    pipeline: tuple[str, ...] = ()
    decision: PlacementDecision | None = None

    @cached_property
    def coverage(self) -> dict[str, dict[str, float]]:
        """By backend: "ops", "flops" and "bytes", and the "ops_fraction", "flops_fraction" and "bytes_fraction" that
        these are of the whole model."""
        total = _work(self.placed)
        found: dict[str, dict[str, float]] = {}
        for backend in dict.fromkeys(row.backend for row in self.placed):
            work = _work([row for row in self.placed if row.backend == backend])
            fractions = {f"{name}_fraction": _fraction(work[name], total[name]) for name in work}
            found[backend] = {**work, **fractions}
        return found

    @property
    def untaken(self) -> tuple[DeclinedMatch, ...]:
        """Return the declines of ops that no library took, one per op, backend and node: the last reason given."""
        last = {(entry.backend, entry.node, entry.op): entry for entry in self.declined if not entry.taken_by}
        return tuple(last.values())

    @property
    def summary(self) -> str:
        """One line: the precision where it is not float32, ops and share of FLOPs by backend, reasons of declines."""
        with_regions = {region.backend for region in self.regions} or set(list(self.coverage)[:1])
        total = sum(row.count for row in self.placed)
        parts: list[str] = []
        for backend, work in self.coverage.items():
            share = f"/{total} ops ({_percent(work['flops_fraction'])} % of FLOPs)" if backend in with_regions else ""
            parts.append(f"{backend} {work['ops']}{share}")
        reasons = Counter(entry.code for entry in self.untaken)
        if reasons:
            ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
            parts.append(f"declined {reasons.total()}: {' '.join(f'{code}×{count}' for code, count in ranked)}")
        if self.violations:
            parts.append(f"contract violations {len(self.violations)}")
        if self.precision != "float32":
            parts.insert(0, self.precision)
        return " · ".join(parts) or "nothing to run"

    def text(self, width: int | None = None) -> str:
        """Format the summary and the tables as text, folded at `width`."""
        head = (_setting_lines, _coverage_lines, _word_lines, _host_lines, _idle_lines)
        parts = [lines(self, width) for lines in (*head, _region_lines, _declined_lines, _unmatched_lines)]
        return "\n".join([*fold(self.summary, width), *(line for part in parts for line in part)])

    def kernel_text(self, width: int | None = None) -> str:
        """Return the kernels as a table, those of the most ops first: how often each is called, and what was fused into
        it.
        """
        calls = sum(kernel.calls for kernel in self.kernels)
        ops = sum(kernel.calls * len(kernel.ops) for kernel in self.kernels)
        head = f"{_count(len(self.kernels), 'kernel')}, called {_count(calls, 'time')} for {_count(ops, 'op')}"
        rows = [("kernel", "by", "calls", "ops fused into it")]
        for kernel in sorted(self.kernels, key=lambda kernel: (-len(kernel.ops), kernel.name)):
            own = f" (your own: {', '.join(kernel.custom)})" if kernel.custom else ""
            rows.append((kernel.name, kernel.backend, str(kernel.calls), " ".join(kernel.ops) + own))
        return "\n".join([*fold(head, width), *(align_rows(rows, width) if self.kernels else [])])

    def __str__(self) -> str:
        return self.text()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data; `from_json` reads it back."""
        entries = {name: [asdict(entry) for entry in getattr(self, name)] for name in READERS}
        for region in entries["regions"]:
            if not region["fallback"]:
                del region["fallback"]
        head: dict[str, Any] = {"target": self.target, "precision": self.precision}
        if self.pipeline:
            head["pipeline"] = list(self.pipeline)
        if self.decision is not None:
            head["decision"] = self.decision.to_json()
        return {**head, "summary": self.summary, "coverage": self.coverage, **_with_lists(entries)}

    @staticmethod
    def from_json(value: Any) -> Report:
        """Read a report, checking everything.

        Raises: ArtifactCorruptedError.
        """
        fields = Fields(value, "report")
        entries: dict[str, Any] = {
            name: fields.each(name, lambda item, where, read=read: read(Fields(item, where)))
            for name, read in READERS.items()
        }
        given: dict[str, Any] = {"pipeline": fields.texts("pipeline")} if "pipeline" in fields else {}
        if "decision" in fields:
            given["decision"] = PlacementDecision.from_json(fields.any("decision"))
        return Report(fields.text("target"), precision=fields.text("precision"), **given, **entries)


def _with_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _work(rows: Sequence[Placed]) -> dict[str, int]:
    return {
        "ops": sum(row.count for row in rows),
        "flops": sum(row.flops for row in rows),
        "bytes": sum(row.bytes for row in rows),
    }


def _percent(fraction: float) -> str:
    """Whole percents; what is not everything is never shown as 100."""
    percent = 100 * fraction
    return f"{percent:.0f}" if fraction == 1 or percent < 99.5 else f"{min(percent, 99.9):.1f}"


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


# --- the table --------------------------------------------------------------------------------------------------------
def _setting_lines(report: Report, width: int | None) -> list[str]:
    """Show the target where it is more than a kind of device, changes of the pipeline, and a measured placement."""
    target = fold(f"for {report.target}", width) if " " in report.target else []
    pipeline = fold(f"pipeline: {'; '.join(report.pipeline)}", width) if report.pipeline else []
    decision = ["", *report.decision.lines(width)] if report.decision is not None else []
    return [*target, *pipeline, *decision]


def _coverage_lines(report: Report, width: int | None) -> list[str]:
    if not report.placed:
        return []
    rows = [("backend", "ops", "FLOPs", "share", "bytes", "share", "ops by name")]
    for backend, work in report.coverage.items():
        named = Counter({row.op: row.count for row in report.placed if row.backend == backend})
        names = " ".join(f"{op}×{count}" for op, count in sorted(named.items(), key=lambda item: (-item[1], item[0])))
        flops, share = amount(work["flops"]), f"{100 * work['flops_fraction']:.1f} %"
        nbytes, bytes_share = amount(work["bytes"]), f"{100 * work['bytes_fraction']:.1f} %"
        rows.append((backend, f"{work['ops']}", flops, share, nbytes, bytes_share, names))
    note = f"FLOPs and bytes are estimates, each symbolic dimension taken as {SYMBOL_SIZE}; bytes count each op alone."
    return ["", *align_rows(rows, width), *fold(note, width)]


def _word_lines(report: Report, width: int | None) -> list[str]:
    """Explain the words of the summary that are no backend's name."""
    used = dict.fromkeys([*report.coverage, *(entry.code for entry in report.untaken)])
    return [part for line in explain_words(used) for part in fold(line, width)]


def _host_lines(report: Report, width: int | None) -> list[str]:
    """List the ops that run on the host of the device: their number by reason."""
    why = Counter(reason.message for node in report.nodes for reason in node.reasons if reason.code == ON_HOST)
    lines = [fold(f"{_count(count, 'op')} on the host: {message}", width) for message, count in why.items()]
    return ["", *(part for line in lines for part in line)] if lines else []


def _idle_lines(report: Report, width: int | None) -> list[str]:
    """Name the backends that run nothing, as others are asked before them, and what would let them."""
    counts: dict[str, Counter[str]] = {}
    for node in report.nodes:
        for reason in node.reasons:
            if reason.code == TAKEN and reason.backend not in report.coverage:
                counts.setdefault(reason.backend, Counter())[f"{reason.message} for {node.op}"] += 1
    lines: list[str] = []
    for backend, ops in counts.items():
        why = ", ".join(f"{text}×{count}" for text, count in ops.most_common(MAX_NODES))
        lines += fold(f'{backend} runs nothing: {why}; backends=["{backend}"] or tune= would let it', width)
    return ["", *lines] if lines else []


def _region_lines(report: Report, width: int | None) -> list[str]:
    if not report.regions:
        return []
    counts = Counter((region.backend, region.pattern, " ".join(region.ops)) for region in report.regions)
    functions = len({region.function for region in report.regions})
    rows = [("offloaded by", "pattern", "times", "ops")]
    rows += [(backend, pattern, str(count), ops) for (backend, pattern, ops), count in counts.items()]
    head = f"{_count(len(report.regions), 'group')} of ops in {_count(functions, 'region')}"
    spare = {region.function: " ".join(region.fallback) for region in report.regions if region.fallback}
    notes = [f"where {symbol} is refused at run time: {kernels}" for symbol, kernels in spare.items()]
    return ["", head, *align_rows(rows, width), *(line for note in notes for line in fold(note, width))]


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _declined_lines(report: Report, width: int | None) -> list[str]:
    lines: list[str] = []
    for violation in report.violations:
        names = _join_first(violation.functions, MAX_NAMED)
        lines += ["", f"contract violated by {violation.backend}{f' in {names}' if names else ''}:"]
        lines += [part for line in violation.message.splitlines() for part in fold(f"  {line}", width)]
    if not report.untaken:
        return lines
    nodes: dict[tuple[str, str, str, str, str], list[str]] = {}
    for e in report.untaken:
        nodes.setdefault((e.backend, e.code, e.op, e.pattern, e.message), []).append(e.node)
    head = ("declined by", "code", "op", "times", "nodes", "pattern", "why")
    rows = [
        (backend, code, op, str(len(names)), _join_first(names, MAX_NODES), pattern, message)
        for (backend, code, op, pattern, message), names in sorted(nodes.items(), key=lambda item: -len(item[1]))
    ]
    return [*lines, *_table_lines(head, rows, width)]


def _unmatched_lines(report: Report, width: int | None) -> list[str]:
    """List why no pattern matched the ops that no library took, the most frequent reasons first."""
    nodes: dict[tuple[str, Reason], list[str]] = {}
    for node in report.nodes:
        for reason in node.reasons if not node.pattern else ():
            if reason.pattern and reason.code in (NO_MATCH, EXCLUDED):
                nodes.setdefault((node.op, reason), []).append(node.name)
    head = ("not matched by", "op", "times", "nodes", "pattern", "why")
    rows = [
        (why.backend, op, str(len(names)), _join_first(names, MAX_NODES), why.pattern, why.message)
        for (op, why), names in sorted(nodes.items(), key=lambda item: -len(item[1]))
    ]
    return _table_lines(head, rows, width) if rows else []


def _join_first(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _table_lines(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    more = len(rows) - MAX_LISTED
    return ["", *align_rows([head, *rows[:MAX_LISTED]], width), *([f"... and {more} more"] if more > 0 else [])]
