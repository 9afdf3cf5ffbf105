"""Lookup of what steps compute: the nodes of the report behind each step, and behind the parts of a library's step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import groupby

from kernelyard.runtime.program.program import Step
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_words import VIEW


class StepNodes:
    """The nodes of a report that each of some steps computes, by number.

    A region's nodes are named by its symbol. Of a kernel only the ops and the origins of its results are known. Those
    ops are found from these nodes back, through what they read. A kernel with ops that the report has not there
    (attention, composed of two products and a softmax after the report's nodes were placed) has all nodes between its
    results and those of other steps.
    """

    def __init__(self, report: Report, steps: Sequence[Step]) -> None:
        self._nodes = report.nodes
        self._ops = {kernel.name: kernel.ops for kernel in report.kernels}
        self._patterns: dict[str, list[str]] = {}
        for region in report.regions:
            self._patterns.setdefault(region.function, []).append(region.pattern)
        self._origins: dict[str, list[int]] = {}
        for number, node in enumerate(self._nodes):
            if not node.function:
                self._origins.setdefault(node.name, []).append(number)
        self._results = {name for step in steps for name in _names(step.label)}
        self._regions = dict(self._calls_of_regions(steps))
        self._found: dict[tuple[str, str], tuple[int, ...]] = {}
        kernels = list(dict.fromkeys((s.label, s.symbol) for s in steps if s.symbol not in self._patterns))
        taken: set[int] = set()
        kernels.sort(key=lambda key: len(self._ops.get(key[1], ())))  # an op by itself is what others were composed to
        for find in (self._find_connected, self._find_scattered, self._find_rest):
            for key in [key for key in kernels if key not in self._found]:
                found = find(*key, taken)
                if found:
                    self._found[key] = tuple(sorted(found))
                    taken.update(found)

    def parts(self, step: Step) -> tuple[str, ...]:
        """Return the patterns in a library's region, or the ops in a kernel."""
        return tuple(self._patterns.get(step.symbol, ())) or self._ops.get(step.symbol, ())

    def nodes(self, step: Step) -> tuple[int, ...]:
        """Return the nodes that a step computes; none where they are not known."""
        if step.symbol in self._patterns:
            return tuple(node for group in self.groups(step) for node in group)
        return self._found.get((step.label, step.symbol), ())

    def groups(self, step: Step) -> tuple[tuple[int, ...], ...]:
        """Return the nodes of each group of a region, in order."""
        return self._regions.get((step.label, step.symbol), ())

    def flops(self, nodes: Sequence[int]) -> int | None:
        """Return the FLOPs of some nodes; None for no nodes."""
        return sum(self._nodes[node].flops for node in nodes) if nodes else None

    def _calls_of_regions(self, steps: Sequence[Step]) -> Iterator[tuple[tuple[str, str], tuple[tuple[int, ...], ...]]]:
        """Several steps may share a region: each has as many of its groups, in order."""
        groups: dict[str, list[tuple[int, ...]]] = {}
        for _, members in groupby(range(len(self._nodes)), key=lambda i: (self._nodes[i].entry, self._nodes[i].group)):
            run = tuple(members)
            groups.setdefault(self._nodes[run[0]].function, []).append(run)
        calls: dict[str, list[str]] = {}
        for step in steps:
            if step.symbol in self._patterns and step.label not in calls.setdefault(step.symbol, []):
                calls[step.symbol].append(step.label)
        for symbol, labels in calls.items():
            found = groups.get(symbol, [])
            size, rest = divmod(len(found), len(labels))
            for number, label in enumerate(labels):
                yield (label, symbol), tuple(found[number * size : (number + 1) * size]) if not rest else tuple(found)

    def _find_connected(self, label: str, symbol: str, taken: Container[int]) -> list[int]:
        """Return the nodes of just the kernel's ops, each read by another; none where some cannot be found so."""
        missing = Counter(self._ops.get(symbol, ()))
        found: list[int] = []

        def is_inside(number: int) -> bool:
            node = self._nodes[number]
            if not missing[node.op]:
                return node.backend == VIEW
            missing[node.op] -= 1
            found.append(number)
            return True

        if missing:
            self._walk(label, is_inside, missing.total)
        return [] if missing.total() else found

    def _find_scattered(self, label: str, symbol: str, taken: Container[int]) -> list[int]:
        """Return nodes of just the kernel's ops, wherever they lie between its results and those of other steps."""
        missing = Counter(self._ops.get(symbol, ()))
        found: list[int] = []
        for number in self._find_between(label, taken):
            if missing[self._nodes[number].op]:
                missing[self._nodes[number].op] -= 1
                found.append(number)
        return [] if missing.total() else found

    def _find_rest(self, label: str, symbol: str, taken: Container[int]) -> list[int]:
        """Return what is left between the kernel's results and those of other steps, if it has ops of its own there."""
        found = self._find_between(label, taken)
        known = {self._nodes[number].op for number in found}
        return found if any(op not in known for op in self._ops.get(symbol, ())) else []

    def _find_between(self, label: str, taken: Container[int]) -> list[int]:
        """Return the nodes that lead to a result, from those on that are results of other steps."""
        found: list[int] = []
        own = _names(label)

        def is_inside(number: int) -> bool:
            node = self._nodes[number]
            if node.name in self._results and node.name not in own:
                return False
            if node.backend != VIEW and number not in taken:
                found.append(number)
            return True

        self._walk(label, is_inside, lambda: 1)
        return found

    def _walk(self, label: str, is_inside: Callable[[int], bool], wanted: Callable[[], int]) -> None:
        """Visit nodes from a kernel's results back through what they read, for as long as they are inside."""
        nodes = self._nodes
        reached = deque(number for name in _names(label) for number in self._origins.get(name, ()))
        seen = set(reached)
        while reached and wanted():
            number = reached.popleft()
            if is_inside(number):
                sources = [n for n in nodes[number].inputs if n not in seen and not nodes[n].function]
                seen.update(sources)
                reached.extend(sources)


def _names(label: str) -> list[str]:
    """Return the nodes that a step is called after; one that fuses siblings has several.

    Example:
        >>> _names("node 'a' (Add); node 'b' (Mul)")
        ["node 'a' (Add)", "node 'b' (Mul)"]
    """
    return label.split("; ")
