"""Choose kernels that together compute every operator once, in the least time: exact, by dynamic programming.

A state is a down-set of operators (with each operator all that it reads) and who made those of its values that are
still to be read: what is in the past decides nothing else. What can follow is found once for each down-set, and holds
for all of its states. Three rules keep states few, and cost no solution:

- Kernels that could run in any order run in one: where every kernel that covers a ready operator could run now, one of
  these is next. So branches that do not share kernels are walked one after another.
- A state is dropped where another with the same operators done is cheaper even if it hands over all that it made
  differently.
- At an articulation point of the dataflow graph one value alone is open, so that one state for each backend is left. No
  graph has to be cut by hand.

Source of the search over down-sets: M. Hu et al., "Optimal Kernel Orchestration for Tensor Programs with Korch", ASPLOS
2024; of persistent sets: P. Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems", 1996.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

# Of all sizes together. Beyond their share of one size the cheapest are kept, and the result may not be the best one.
MOST_STATES = 250_000


@dataclass(frozen=True)
class Kernel:
    """Operators, by number, that a backend computes together, and the seconds that it was measured to take."""

    backend: str
    ops: frozenset[int]
    seconds: float


@dataclass(frozen=True)
class Problem:
    """Describe what is to be computed.

    count: operators, numbered so that each reads earlier ones. edges: the seconds to hand the first operator's result
    to the second where another backend runs it. kernels: what there is to choose from.
    """

    count: int
    edges: Mapping[tuple[int, int], float]
    kernels: Sequence[Kernel]

    @cached_property
    def reads(self) -> list[list[int]]:
        """For each operator those whose results it reads."""
        found: list[list[int]] = [[] for _ in range(self.count)]
        for source, target in self.edges:
            found[target].append(source)
        return found

    def seconds(self, chosen: Sequence[Kernel]) -> float:
        """Return what kernels cost that cover every operator: their own time, and what they hand over."""
        owner = {op: kernel.backend for kernel in chosen for op in kernel.ops}
        crossing = (cost for (source, target), cost in self.edges.items() if owner[source] != owner[target])
        return sum(kernel.seconds for kernel in chosen) + sum(crossing)


class Solution(NamedTuple):
    """kernels: in an order in which they can run. is_exact: no other choice is cheaper."""

    kernels: tuple[Kernel, ...]
    seconds: float
    is_exact: bool


_Owners: TypeAlias = tuple[str, ...]
"""The backends that made the open values of a down-set: those that are still to be read, in the order of operators."""
_State: TypeAlias = tuple[int, _Owners]
"""A bit for each operator that is done, and the owners."""


class _Reached(NamedTuple):
    seconds: float
    before: _State | None
    kernel: Kernel | None


class _Move(NamedTuple):
    kernel: Kernel
    ops: int  # bits
    needs: int  # bits of operators that it reads and does not compute


class _DownSet(NamedTuple):
    """Hold a down-set: a bit for each operator; those that are still to be read; how its states are reached."""

    done: int
    open: tuple[int, ...]
    states: dict[_Owners, _Reached]


class _Step(NamedTuple):
    """A move from a down-set, whoever made what is open there.

    done, open: those of the down-set that it leads to. owners: for each open value there the place of its owner before,
    -1 where the move made it. handed: places of owners whose values it reads, and what that costs from another backend.
    """

    kernel: Kernel
    done: int
    open: tuple[int, ...]
    owners: list[int]
    handed: list[tuple[int, float]]


def search(problem: Problem, most_states: int | None = None) -> Solution | None:
    """Return the cheapest choice of kernels, None where no choice covers every operator.

    most_states: of one size; by default so many that the search of 1,000 operators takes a few seconds.

    Example:
        >>> chain = {(0, 1): 1.0}
        >>> made = [("a", 0, 2.0), ("b", 1, 2.0), ("a", 1, 2.5)]
        >>> kernels = [Kernel(backend, frozenset({op}), seconds) for backend, op, seconds in made]
        >>> search(Problem(2, chain, kernels)).seconds
        4.5
    """
    return _Search(problem, most_states or max(MOST_STATES // max(problem.count, 1), 1)).run()


class _Search:
    def __init__(self, problem: Problem, most_states: int) -> None:
        self.problem, self.most_states = problem, most_states
        self.needs = [_bits(reads) for reads in problem.reads]
        self.readers = [0] * problem.count
        for source, target in problem.edges:
            self.readers[source] |= 1 << target
        self.sources = _bits(op for op in range(problem.count) if not self.needs[op])
        self.moves: list[list[_Move]] = [[] for _ in range(problem.count)]
        for move in self._moves():
            for op in move.kernel.ops:
                self.moves[op].append(move)

    def run(self) -> Solution | None:
        count, is_exact = self.problem.count, True
        by_size: list[dict[int, _DownSet]] = [{} for _ in range(count + 1)]
        by_size[0][0] = _DownSet(0, (), {(): _Reached(0.0, None, None)})
        for level in by_size[:-1]:
            for each in level.values():
                self._drop_dominated(each)
            is_exact &= _keep_cheapest(level, self.most_states)
            for each in level.values():
                for step in self._steps(each):
                    target = _DownSet(step.done, step.open, {})
                    _take(step, each, by_size[step.done.bit_count()].setdefault(step.done, target))
        if not by_size[count]:
            return None
        (end,) = by_size[count].values()
        ((owners, reached),) = end.states.items()  # nothing is to be read any more
        return Solution(tuple(_path(by_size, (end.done, owners))), reached.seconds, is_exact)

    def _moves(self) -> list[_Move]:
        """Return the kernels that could run: no path leaves one and comes back. Of equal ones the fastest."""
        below, above = [0] * self.problem.count, [0] * self.problem.count
        for op, reads in enumerate(self.problem.reads):
            for source in reads:
                above[op] |= above[source] | 1 << source
        for op in reversed(range(self.problem.count)):
            for target in _numbers(self.readers[op]):
                below[op] |= below[target] | 1 << target
        best: dict[tuple[str, frozenset[int]], Kernel] = {}
        for kernel in self.problem.kernels:
            known = best.get((kernel.backend, kernel.ops))
            if known is None or kernel.seconds < known.seconds:
                best[kernel.backend, kernel.ops] = kernel
        found: list[_Move] = []
        for kernel in best.values():
            ops = _bits(kernel.ops)
            before, after, needs = 0, 0, 0
            for op in kernel.ops:
                before, after, needs = before | above[op], after | below[op], needs | self.needs[op]
            if not before & after & ~ops:
                found.append(_Move(kernel, ops, needs & ~ops))
        return found

    def _drop_dominated(self, each: _DownSet) -> None:
        """Drop states behind the cheapest by more than it may cost to go on from that one as from them."""
        states, edges = each.states, self.problem.edges
        best = min(states, key=lambda owners: states[owners].seconds)
        left = [(op, _numbers(self.readers[op] & ~each.done)) for op in each.open]
        at_most = [sum(edges[op, reader] for reader in readers) for op, readers in left]
        for owners in [owners for owners in states if owners != best]:
            differing = (cost for cost, a, b in zip(at_most, owners, best, strict=True) if a != b)
            if states[best].seconds + sum(differing) <= states[owners].seconds:
                del states[owners]

    def _steps(self, each: _DownSet) -> Iterator[_Step]:
        """Yield the moves to branch on from a down-set, with what they depend on."""
        place = {op: number for number, op in enumerate(each.open)}
        for move in self._next(each):
            kernel, done = move.kernel, each.done | move.ops
            handed: dict[int, float] = {}
            for op in kernel.ops:
                for source in self.problem.reads[op]:
                    if source not in kernel.ops:
                        known = handed.get(place[source], 0.0)
                        handed[place[source]] = known + self.problem.edges[source, op]
            after = tuple(op for op in sorted((*each.open, *kernel.ops)) if self.readers[op] & ~done)
            yield _Step(kernel, done, after, [place.get(op, -1) for op in after], list(handed.items()))

    def _next(self, each: _DownSet) -> list[_Move]:
        """Return the moves to branch on; see the module."""
        done, reachable = each.done, self.sources
        for op in each.open:
            reachable |= self.readers[op]
        runnable: dict[_Move, None] = {}
        for op in _numbers(reachable & ~done):
            if self.needs[op] & ~done:
                continue
            open_moves = [move for move in self.moves[op] if not move.ops & done]
            now = [move for move in open_moves if not move.needs & ~done]
            if len(now) == len(open_moves):
                return now
            runnable |= dict.fromkeys(now)
        return list(runnable)


def _keep_cheapest(level: dict[int, _DownSet], most: int) -> bool:
    """Drop all but so many states of one size; False where there were more."""
    found = [(state.seconds, each.done, owners) for each in level.values() for owners, state in each.states.items()]
    if len(found) <= most:
        return True
    for _, done, owners in sorted(found)[most:]:
        del level[done].states[owners]
        if not level[done].states:
            del level[done]
    return False


def _take(step: _Step, source: _DownSet, target: _DownSet) -> None:
    """Add what a step leads to from each state, where nothing leads there in less time."""
    kernel, backend, found = step.kernel, step.kernel.backend, target.states
    for owners, reached in source.states.items():
        seconds = reached.seconds + kernel.seconds
        for place, cost in step.handed:
            if owners[place] != backend:
                seconds += cost
        extended = (*owners, backend)
        after = tuple([extended[place] for place in step.owners])
        known = found.get(after)
        if known is None or seconds < known.seconds:
            found[after] = _Reached(seconds, (source.done, owners), kernel)


def _path(by_size: Sequence[Mapping[int, _DownSet]], end: _State) -> list[Kernel]:
    found: list[Kernel] = []
    state: _State | None = end
    while state is not None:
        done, owners = state
        reached = by_size[done.bit_count()][done].states[owners]
        if reached.kernel is not None:
            found.append(reached.kernel)
        state = reached.before
    return found[::-1]


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def _numbers(bits: int) -> list[int]:
    """Return the numbers of the bits that are set, in order."""
    found: list[int] = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
