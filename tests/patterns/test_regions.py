"""Maximal convex regions: every result is convex, and nothing that could be merged with a neighbour is left apart."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard.patterns.regions import convex_regions


def test_a_chain_is_one_region() -> None:
    assert convex_regions([[], [0], [1]], ["a", "a", "a"], [None] * 3) == [[0, 1, 2]]


def test_a_detour_through_another_colour_splits() -> None:
    assert convex_regions([[], [0], [0, 1]], ["a", "b", "a"], [None] * 3) == [[0], [1], [2]]


def test_a_branch_of_another_colour_that_does_not_come_back() -> None:
    assert convex_regions([[], [0], [0]], ["a", None, "a"], [None] * 3) == [[0, 2], [1]]


def test_two_colours_that_would_wait_for_each_other() -> None:
    # a0 -> b1, b2 -> a3, a0 -> a3, b2 -> b1: merging both pairs would make two regions that need each other.
    groups = convex_regions([[], [], [0, 1], [0, 1]], ["a", "b", "b", "a"], [None] * 4)
    assert groups == [[0], [1, 2], [3]]


def test_inseparable_nodes_join_their_producer() -> None:
    assert convex_regions([[], [0], [1]], ["a", None, "a"], [None, 0, None]) == [[0, 1, 2]]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[str | None]]:
    count = draw(st.integers(1, 14))
    producers = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(count)]
    return producers, [draw(st.sampled_from(["a", "b", None])) for _ in range(count)]


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_regions_are_a_schedule_and_cannot_grow(graph: tuple[list[list[int]], list[str | None]]) -> None:
    producers, colours = graph
    groups = convex_regions(producers, colours, [None] * len(producers))
    assert sorted(node for group in groups for node in group) == list(range(len(producers)))
    done: set[int] = set()
    for group in groups:  # in this order everything a group needs is there: so no two groups wait for each other
        assert group == sorted(group)
        assert len({colours[node] for node in group}) == 1
        assert len(group) == 1 or colours[group[0]] is not None
        assert {p for node in group for p in producers[node]} <= done | set(group)
        done |= set(group)
    for i, first in enumerate(groups):
        for second in groups[i + 1 :]:
            if (
                colours[first[0]] is not None
                and colours[first[0]] == colours[second[0]]
                and _adjacent(first, second, producers)
            ):
                assert not _is_acyclic([g for g in groups if g not in (first, second)] + [first + second], producers)


def _adjacent(first: list[int], second: list[int], producers: list[list[int]]) -> bool:
    return any(p in first for node in second for p in producers[node])


def _is_acyclic(groups: list[list[int]], producers: list[list[int]]) -> bool:
    waiting, done = [list(g) for g in groups], set[int]()
    while waiting:
        ready = [g for g in waiting if {p for node in g for p in producers[node]} <= done | set(g)]
        if not ready:
            return False
        done |= {node for g in ready for node in g}
        waiting = [g for g in waiting if g not in ready]
    return True
