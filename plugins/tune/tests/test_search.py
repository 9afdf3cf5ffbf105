"""The search is exact: compared with every choice there is, and with an integer program."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from kernelyard_tune.search import Kernel, Problem, search

BACKENDS = "abcd"


def a_problem(seed: int, count: int, backends: int = 3) -> Problem:
    """Return a random graph; kernels for one operator, and for connected ones, convex or not."""
    rng = random.Random(seed)
    near = rng.choice([1, 2, 4, count])
    edges = {
        (source, target): rng.choice([0.0, rng.random()])
        for target in range(1, count)
        for source in rng.sample(
            range(max(0, target - near), target), min(target, near, rng.choice([0, 1, 1, 1, 2, 3]))
        )
    }
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        neighbours[source].add(target)
        neighbours[target].add(source)
    kernels: list[Kernel] = []
    for backend in BACKENDS[:backends]:
        kernels += [Kernel(backend, frozenset({op}), rng.uniform(0.5, 2)) for op in range(count) if rng.random() < 0.8]
        for _ in range(rng.randrange(count + 1)):
            ops = {rng.randrange(count)}
            for _ in range(rng.randrange(4)):
                around = sorted(set().union(*(neighbours[op] for op in ops)) - ops)
                ops |= {rng.choice(around)} if around else set()
            kernels.append(Kernel(backend, frozenset(ops), rng.uniform(0.3, 1.5) * len(ops)))
    return Problem(count, edges, kernels)


class Exhaustive:
    """Try every choice of kernels that covers each operator once, but those that are too dear already.

    most: the seconds that are looked for, or less; None for any.
    """

    def __init__(self, problem: Problem, most: float | None = None) -> None:
        self.problem = problem
        self.least = most and most * (1 + 1e-9)
        self.cheapest = [
            min((k.seconds / len(k.ops) for k in problem.kernels if op in k.ops), default=0)
            for op in range(problem.count)
        ]
        self.kernels = [kernel for kernel in problem.kernels if can_run(problem, [kernel, *self._alone(kernel)])]
        covered = frozenset[int]().union(*(kernel.ops for kernel in self.kernels))
        if len(covered) == problem.count:
            self._extend(covered, [], 0.0)

    def _alone(self, kernel: Kernel) -> list[Kernel]:
        """Return kernels of one operator each for what a kernel does not compute: if it cannot run among these, it never
        can.
        """
        return [Kernel("", frozenset({op}), 0.0) for op in range(self.problem.count) if op not in kernel.ops]

    def _extend(self, left: frozenset[int], chosen: list[Kernel], spent: float) -> None:
        if not left:
            seconds = self.problem.seconds(chosen)
            if (self.least is None or seconds < self.least) and can_run(self.problem, chosen):
                self.least = seconds
            return
        if self.least is not None and spent + sum(self.cheapest[op] for op in left) >= self.least + 1e-12:
            return
        first = min(left)
        for kernel in self.kernels:
            if first in kernel.ops and kernel.ops <= left:
                self._extend(left - kernel.ops, [*chosen, kernel], spent + kernel.seconds)


def can_run(problem: Problem, chosen: list[Kernel]) -> bool:
    """Tell if there is an order in which each kernel finds what it reads."""
    done: set[int] = set()
    waiting = list(chosen)
    while waiting:
        ready = [k for k in waiting if all(s in done or s in k.ops for op in k.ops for s in problem.reads[op])]
        if not ready:
            return False
        done.update(op for kernel in ready for op in kernel.ops)
        waiting = [kernel for kernel in waiting if kernel not in ready]
    return True


def least_seconds(problem: Problem) -> float | None:
    """Return what the cheapest choice takes. That of the search is one of those that are tried, and tells when to stop."""
    found = search(problem)
    return Exhaustive(problem, found and found.seconds).least


def check(problem: Problem, expected: float | None) -> None:
    found = search(problem)
    if expected is None or found is None:
        assert found is None
        assert expected is None
        return
    assert found.is_exact
    assert found.seconds == pytest.approx(expected)
    assert problem.seconds(found.kernels) == pytest.approx(found.seconds)
    assert sorted(op for kernel in found.kernels for op in kernel.ops) == list(range(problem.count))
    done: set[int] = set()
    for kernel in found.kernels:  # in the order in which they run
        assert all(source in done or source in kernel.ops for op in kernel.ops for source in problem.reads[op])
        done |= kernel.ops


def test_no_choice_is_cheaper(campaign: int | None) -> None:
    """In each round of a campaign, 200 other graphs, of up to 14 operators."""
    seeds, most = (range(200), 9) if campaign is None else (range(200 * campaign, 200 * campaign + 200), 14)
    solvable = 0
    for seed in seeds:
        problem = a_problem(seed, 1 + seed % most)
        expected = least_seconds(problem)
        check(problem, expected)
        solvable += expected is not None
    assert solvable > len(seeds) / 2


def test_a_dense_graph_of_few_operators_is_searched_whole() -> None:
    """It has more states of one size than a graph of a thousand operators has room for."""
    problem = a_problem(12, 13)
    narrow = search(problem, most_states=500)
    assert narrow is not None
    assert not narrow.is_exact
    check(problem, least_seconds(problem))


def integer_program(problem: Problem) -> float | None:
    """Solve the problem as scipy does.

    Variables: a kernel is chosen; an edge is crossed; the time at which an operator runs, which is one time for a kernel.
    """
    optimize = pytest.importorskip("scipy.optimize")
    kernels, edges, count = list(problem.kernels), list(problem.edges), problem.count
    first_edge, first_time = len(kernels), len(kernels) + len(edges)
    size, big = first_time + count, count + 1
    rows: list[np.ndarray] = []
    least_values: list[float] = []

    def at_least(value: float, of: list[tuple[int, float]]) -> None:
        row = np.zeros(size)
        for at, factor in of:
            row[at] += factor
        rows.append(row)
        least_values.append(value)

    for op in range(count):
        having = [(i, 1.0) for i, kernel in enumerate(kernels) if op in kernel.ops]
        at_least(1, of=having)
        at_least(-1, of=[(i, -factor) for i, factor in having])
    for number, (source, target) in enumerate(edges):
        both = [(i, float(big)) for i, kernel in enumerate(kernels) if {source, target} <= kernel.ops]
        at_least(1, of=[(first_time + target, 1.0), (first_time + source, -1.0), *both])
        for backend in BACKENDS:
            makes = [(i, -1.0) for i, k in enumerate(kernels) if source in k.ops and k.backend == backend]
            takes = [(i, 1.0) for i, k in enumerate(kernels) if target in k.ops and k.backend == backend]
            at_least(0, of=[(first_edge + number, 1.0), *makes, *takes])
    for i, kernel in enumerate(kernels):
        ops = sorted(kernel.ops)
        for one, other in [*pairwise(ops), *pairwise(ops[::-1])]:
            at_least(-big, of=[(first_time + one, 1.0), (first_time + other, -1.0), (i, -float(big))])
    costs = [*(k.seconds for k in kernels), *problem.edges.values(), *[0.0] * count]
    found = optimize.milp(
        costs,
        constraints=optimize.LinearConstraint(np.array(rows), np.array(least_values)),
        integrality=[1] * len(kernels) + [0] * (len(edges) + count),
        bounds=optimize.Bounds(0, [1] * first_time + [count] * count),
    )
    return float(found.fun) if found.success else None


def test_an_integer_program_finds_the_same() -> None:
    for seed in range(1000, 1025):
        problem = a_problem(seed, 10)
        check(problem, integer_program(problem))


def test_of_many_states_the_cheapest_are_kept() -> None:
    problem = a_problem(7, 12, backends=4)
    exact, narrow = search(problem), search(problem, most_states=1)
    assert exact is not None
    assert exact.is_exact
    assert narrow is None or (not narrow.is_exact and narrow.seconds >= exact.seconds)


@pytest.mark.parametrize("branches", [1, 4])
def test_a_long_graph_has_few_states(branches: int) -> None:
    """Blocks of branches that meet again: as many states of one size as the ends of branches can have owners."""
    rng = random.Random(0)
    edges: dict[tuple[int, int], float] = {}
    last, count = 0, 1
    while count < 1000:
        ends: list[int] = []
        for _ in range(branches):
            before = last
            for _ in range(3):
                edges[before, count] = 0.1
                before, count = count, count + 1
            ends.append(before)
        edges |= {(end, count): 0.1 for end in ends}
        last, count = count, count + 1
    kernels = [Kernel(b, frozenset({op}), rng.random()) for b in BACKENDS for op in range(count)]
    kernels += [Kernel(b, frozenset(edge), rng.random()) for b in BACKENDS for edge in edges]
    found = search(Problem(count, edges, kernels))
    assert found is not None
    assert found.is_exact
