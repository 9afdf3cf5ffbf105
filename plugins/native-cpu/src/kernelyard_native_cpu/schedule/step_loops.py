"""Loops over steps: which groups share one, and which loops may run at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Buffer
from kernelyard_native_cpu.schedule.group import Group


@dataclass(frozen=True)
class StepLoop:
    """Groups, by number, that are run in turn for each step. steps: None for groups outside of all loops."""

    groups: tuple[int, ...]
    steps: Dim | None
    reads: frozenset[Buffer]
    writes: frozenset[Buffer]

    def depends_on(self, other: StepLoop) -> bool:
        """Return True when one writes what the other touches, so that their order matters."""
        return not (self.writes.isdisjoint(other.reads | other.writes) and self.reads.isdisjoint(other.writes))


@dataclass(frozen=True)
class LoopOrder:
    """Loops in an order in which they may run: some, then those that may run at the same time, then the others."""

    before: tuple[StepLoop, ...]
    together: tuple[StepLoop, ...] = ()
    after: tuple[StepLoop, ...] = ()


def order_loops(groups: Sequence[Group]) -> LoopOrder:
    """Return the loops of a kernel's groups; those of recurrences that do not depend on each other are put together."""
    loops = tuple(
        _loop_of([(number, group) for number, group in numbered])
        for _, numbered in groupby(enumerate(groups), lambda each: each[1].step)
    )
    together = tuple(loop for loop in loops if loop.steps is not None)
    if len(together) < 2 or any(a.depends_on(b) for n, a in enumerate(together) for b in together[:n]):
        return LoopOrder(loops)
    return _put_together(loops, together) or LoopOrder(loops)


def _put_together(loops: Sequence[StepLoop], together: tuple[StepLoop, ...]) -> LoopOrder | None:
    """Return the order with some loops side by side; None where another has to run after one and before the next."""
    before: list[StepLoop] = []
    passed: list[StepLoop] = []
    after: list[StepLoop] = []
    for loop in loops:
        must_wait = any(loop.depends_on(earlier) for earlier in (*passed, *after))
        if loop not in together:
            (after if must_wait else before).append(loop)
        elif must_wait:
            return None
        else:
            passed.append(loop)
    return LoopOrder(tuple(before), together, tuple(after))


def _loop_of(numbered: Sequence[tuple[int, Group]]) -> StepLoop:
    blocks = [block for _, group in numbered for stage in group.stages for block in stage.blocks]
    step = numbered[0][1].step
    return StepLoop(
        tuple(number for number, _ in numbered),
        None if step is None else step.extent,
        frozenset(buffer for block in blocks for buffer in block.reads),
        frozenset(block.output for block in blocks),
    )
