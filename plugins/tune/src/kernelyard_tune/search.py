"""Choose kernels that together compute every operator once, in the least time: exact, by dynamic programming.

A state is a down-set of operators (with each operator all that it reads) and who made those of its values that are
still to be read: what is in the past decides nothing else. Three rules keep states few, and cost no solution:

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

MOST_STATES = 500  # of one size; beyond them the cheapest are kept, and the result may not be the best one


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


class _State(NamedTuple):
    done: int  # a bit for each operator
    owners: tuple[tuple[int, str], ...]  # operators of it that are still to be read, and their backends


class _Reached(NamedTuple):
    seconds: float
    before: _State | None
    kernel: Kernel | None


class _Move(NamedTuple):
    kernel: Kernel
    ops: int  # bits
    needs: int  # bits of operators that it reads and does not compute


def search(problem: Problem, most_states: int = MOST_STATES) -> Solution | None:
    """Return the cheapest choice of kernels, None where no choice covers every operator.

    Example:
        >>> chain = {(0, 1): 1.0}
        >>> made = [("a", 0, 2.0), ("b", 1, 2.0), ("a", 1, 2.5)]
        >>> kernels = [Kernel(backend, frozenset({op}), seconds) for backend, op, seconds in made]
        >>> search(Problem(2, chain, kernels)).seconds
        4.5
    """
    return _Search(problem, most_states).run()


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
        by_size: list[dict[_State, _Reached]] = [{} for _ in range(count + 1)]
        by_size[0][_State(0, ())] = _Reached(0.0, None, None)
        for level in by_size[:-1]:
            self._drop_dominated(level)
            if len(level) > self.most_states:
                is_exact = False
                for state in sorted(level, key=lambda state: level[state].seconds)[self.most_states :]:
                    del level[state]
            for state, reached in level.items():
                for move in self._next(state):
                    after, seconds = self._after(state, move)
                    arrived, known = reached.seconds + seconds, by_size[after.done.bit_count()]
                    if after not in known or arrived < known[after].seconds:
                        known[after] = _Reached(arrived, state, move.kernel)
        ends = by_size[count]
        if not ends:
            return None
        end = min(ends, key=lambda state: ends[state].seconds)
        return Solution(tuple(_path(by_size, end)), ends[end].seconds, is_exact)

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

    def _drop_dominated(self, level: dict[_State, _Reached]) -> None:
        best: dict[int, _State] = {}
        for state, reached in level.items():
            known = best.get(state.done)
            if known is None or reached.seconds < level[known].seconds:
                best[state.done] = state
        for state in list(level):
            rival = best[state.done]
            if state != rival and level[rival].seconds + self._at_most(state, rival) <= level[state].seconds:
                del level[state]

    def _at_most(self, state: _State, rival: _State) -> float:
        """Return the most that going on from `rival` costs beyond going on the same way from `state`."""
        differing = [op for (op, a), (_, b) in zip(state.owners, rival.owners, strict=True) if a != b]
        edges = self.problem.edges
        return sum(edges[op, reader] for op in differing for reader in _numbers(self.readers[op] & ~state.done))

    def _next(self, state: _State) -> list[_Move]:
        """Return the moves to branch on; see the module."""
        done, reachable = state.done, self.sources
        for op, _ in state.owners:
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

    def _after(self, state: _State, move: _Move) -> tuple[_State, float]:
        """Return the state after a move, and what the move costs."""
        done, owners, kernel = state.done | move.ops, dict(state.owners), move.kernel
        seconds = kernel.seconds
        for op in kernel.ops:
            for source in self.problem.reads[op]:
                if source not in kernel.ops and owners[source] != kernel.backend:
                    seconds += self.problem.edges[source, op]
        owners.update(dict.fromkeys(kernel.ops, kernel.backend))
        still = sorted((op, backend) for op, backend in owners.items() if self.readers[op] & ~done)
        return _State(done, tuple(still)), seconds


def _path(by_size: Sequence[Mapping[_State, _Reached]], end: _State) -> list[Kernel]:
    found: list[Kernel] = []
    state: _State | None = end
    while state is not None:
        reached = by_size[state.done.bit_count()][state]
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
