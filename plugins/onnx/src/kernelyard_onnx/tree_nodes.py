"""Decision trees as tables for `ml.tree_ensemble`: every comparison said with `x <= threshold`, children side by side.

`x < t` is `x <= t'` for the number t' before t; `x > t` and `x >= t` are their opposites; `x == t` is two comparisons,
and membership in a set one of these for each element. A node that two others lead to has one place: the second one
leads to a jump, a node that compares with nothing and has the place for its child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

LEAF, MEMBER = "LEAF", "BRANCH_MEMBER"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", MEMBER)  # as opset 5 counts


@dataclass(frozen=True)
class Nodes:
    """The nodes of all trees, as the standard has them; an entry for each node.

    yes, no: the nodes to go on with where the comparison holds, and where not. missing_is_yes: whether NaN counts as
    holding. members: the sets of nodes that ask for membership.
    """

    modes: Sequence[str]
    features: np.ndarray
    thresholds: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing_is_yes: np.ndarray
    members: Mapping[int, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tables:
    """The operands of `ml.tree_ensemble`. leaves: the node that stands in a place, where that is a leaf, else -1."""

    roots: np.ndarray
    features: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    leaves: np.ndarray
    depth: int


def tables_of(nodes: Nodes, roots: Sequence[int]) -> Tables:
    """Return the tables of the trees that begin at `roots`.

    Raises: ValueError for an unknown mode, and for nodes that lead to one another in a circle.
    """
    packer = _Packer(nodes)
    starts: list[int] = []
    for root in roots:
        starts.append(packer.room(1))
        packer.put(starts[-1], root)
        packer.finish_tree()
    dtype = nodes.thresholds.dtype
    features = np.array(packer.features, np.int32)
    children = np.array(packer.children, np.int32)
    tables = (features, np.array(packer.thresholds, dtype), children, np.array(packer.leaves, np.int64))
    return Tables(np.array(starts, np.int32), *tables, _depth(np.array(starts), tables))


def _depth(roots: np.ndarray, tables: tuple[np.ndarray, ...]) -> int:
    """Return the number of steps after which every way down has come to a leaf."""
    features, thresholds, children, leaves = tables
    is_jump = np.isnan(thresholds) & (features >= 0)
    reached, depth = roots, 0
    while len(inner := reached[leaves[reached] < 0]):
        depth += 1
        if depth > len(children):
            raise ValueError("the nodes of a tree lead to one another in a circle")
        reached = np.unique(np.concatenate([children[inner], children[inner[~is_jump[inner]]] + 1]))
    return depth


class _Packer:
    """Puts nodes in places, each tree breadth first: the upper nodes of a tree lie close together."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.features: list[int] = []
        self.thresholds: list[float] = []
        self.children: list[int] = []
        self.leaves: list[int] = []
        self._places: dict[int, int] = {}
        self._waiting: list[tuple[int, int]] = []

    def room(self, count: int) -> int:
        """Return the first of `count` new places."""
        first = len(self.features)
        self.features += [0] * count
        self.thresholds += [np.nan] * count
        self.children += range(first, first + count)
        self.leaves += [-1] * count
        return first

    def put(self, place: int, node: int) -> None:
        """Put a node, or a jump to where it is, in a place."""
        if node in self._places and self.nodes.modes[node] != LEAF:
            self.children[place] = self._places[node]
            return
        self._places[node] = place
        self._waiting.append((place, node))

    def finish_tree(self) -> None:
        """Put everything that the nodes put so far lead to; the places of other trees are not shared."""
        for place, node in self._waiting:  # grows meanwhile
            self._fill(place, node)
        self._waiting.clear()
        self._places.clear()

    def _fill(self, place: int, node: int) -> None:
        nodes, mode = self.nodes, self.nodes.modes[node]
        if mode == LEAF:
            self.leaves[place] = node
            return
        threshold = nodes.thresholds[node]
        yes, no = int(nodes.yes[node]), int(nodes.no[node])
        missing = bool(nodes.missing_is_yes[node])
        if mode in ("BRANCH_LEQ", "BRANCH_LT"):
            limit = threshold if mode == "BRANCH_LEQ" else _before(threshold)
            first = self._compare(place, node, limit, missing)
            self.put(first, no)
            self.put(first + 1, yes)
        elif mode in ("BRANCH_GT", "BRANCH_GTE"):
            limit = threshold if mode == "BRANCH_GT" else _before(threshold)
            first = self._compare(place, node, limit, not missing)
            self.put(first, yes)
            self.put(first + 1, no)
        elif mode == "BRANCH_EQ":
            self._equal(place, node, [threshold], yes, no, missing)
        elif mode == "BRANCH_NEQ":
            self._equal(place, node, [threshold], no, yes, False)
        elif mode == MEMBER:
            self._equal(place, node, [nodes.thresholds.dtype.type(v) for v in nodes.members[node]], yes, no, missing)
        else:
            raise ValueError(f"its mode {mode!r} is unknown")

    def _compare(self, place: int, node: int, limit: float, missing_is_second: bool) -> int:
        """Make a place one that compares; its children begin at the place returned."""
        feature = int(self.nodes.features[node])
        self.features[place] = ~feature if missing_is_second else feature
        self.thresholds[place] = limit
        self.children[place] = self.room(2)
        return self.children[place]

    def _equal(self, place: int, node: int, values: Sequence[float], yes: int, no: int, missing: bool) -> None:
        """`x <= v and not x <= v'` leads to `yes`, where v' is the number before v; else the next value is tried."""
        for number, value in enumerate(values):
            outer = self._compare(place, node, value, missing)
            inner = self._compare(outer + 1, node, _before(value), False)
            self.put(inner, yes)
            if number == len(values) - 1:
                self.put(outer, no)
                self.put(inner + 1, no)
            else:
                self.children[inner + 1] = outer  # a jump
                place = outer


def _before(value: float) -> float:
    """Return the next smaller number; of minus infinity NaN, which nothing is at most."""
    number = np.asarray(value)
    return np.nan if np.isneginf(number) else np.nextafter(number, number.dtype.type(-np.inf)).item()
