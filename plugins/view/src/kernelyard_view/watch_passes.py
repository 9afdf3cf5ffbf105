"""Record what each pass changes in the text of a module, while a model is compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kernelyard.ir import IRModule, to_text
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, Sequential
from kernelyard_view.build import PassChange

AROUND = 3  # unchanged lines that are kept around changed ones
MAX_LINES = 1500  # of a pass that a page keeps


class WatchPasses(Instrument):
    """Gathers the passes that changed the module, with what they changed.

    Example:
        >>> WatchPasses().changes
        []
    """

    def __init__(self) -> None:
        self.changes: list[PassChange] = []
        self._started: list[float] = []
        self._last: tuple[IRModule, list[str]] | None = None

    def before_pass(self, pass_: Pass, module: IRModule, depth: int) -> None:
        del self._started[depth:]  # what a failed pass left behind is deeper than we are
        self._started.append(time.perf_counter())

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        seconds = time.perf_counter() - self._started.pop()
        if after is before or isinstance(pass_, Sequential):
            return
        old = self._lines(before)
        new = self._lines(after)
        changed = list(diff_lines(old, new))
        if any(sign != " " for sign, _ in changed):
            lines = list(_hunks(changed))
            added, removed = (sum(sign == wanted for sign, _ in changed) for wanted in "+-")
            more = max(0, len(lines) - MAX_LINES)
            self.changes.append(PassChange(pass_.name, seconds, added, removed, tuple(lines[:MAX_LINES]), more))

    def _lines(self, module: IRModule) -> list[str]:
        """Return the text of a module; what one pass left is what the next is given."""
        if self._last is None or self._last[0] is not module:
            self._last = module, to_text(module, "elided").splitlines()
        return self._last[1]


def diff_lines(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of both texts: ("-", line) of the first alone, ("+", line) of the second, (" ", line) of both.

    Takes time linear in the lines, where a shortest difference would take too long for large modules.

    Example:
        >>> list(diff_lines(["a", "b", "c"], ["a", "d", "c"]))
        [(' ', 'a'), ('-', 'b'), ('+', 'd'), (' ', 'c')]
    """
    old, new = frozenset(before), frozenset(after)
    i = j = 0
    while i < len(before) and j < len(after):
        if before[i] == after[j]:
            yield " ", before[i]
            i, j = i + 1, j + 1
        elif before[i] not in new or after[j] in old:  # gone, or moved: then it comes again as added
            yield "-", before[i]
            i += 1
        else:
            yield "+", after[j]
            j += 1
    yield from (("-", line) for line in before[i:])
    yield from (("+", line) for line in after[j:])


def _hunks(changed: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield changed lines with some around them, and how many were left out between."""
    near = bytearray(len(changed))
    for place, (sign, _) in enumerate(changed):
        if sign != " ":
            first, last = max(0, place - AROUND), min(len(changed), place + AROUND + 1)
            near[first:last] = b"\1" * (last - first)
    place = 0
    while place < len(changed):
        if near[place]:
            yield "".join(changed[place])
            place += 1
            continue
        end = near.find(1, place)
        end = len(changed) if end < 0 else end
        yield f"@ {end - place} lines are the same"
        place = end
