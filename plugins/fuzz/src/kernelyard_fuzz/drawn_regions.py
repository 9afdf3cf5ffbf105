"""Oracle of regions: groups of a drawn graph can run one after the other, and each is of one colour.

Where a group waits for another that waits for it, many readers have to come together: graphs of operators are too small
for it, and nothing but who reads whom matters.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.patterns.regions import convex_regions
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.errors import FoundError

COLOURS = ("a", "a", "a", "b", "b", None, None)  # of nodes: backends that take them, or none
READ = (1, 1, 2, 2, 3)  # nodes before a node that it reads
MOST_NODES = 40


def check_regions(chooser: Chooser) -> None:
    """Group the nodes of a drawn graph into regions. Raises: FoundError."""
    count = chooser.between(4, MOST_NODES)
    producers = [[chooser.below(node) for _ in range(chooser.pick(READ))] if node else [] for node in range(count)]
    colours = [chooser.pick(COLOURS) for _ in range(count)]
    groups = convex_regions(producers, colours, [None] * count)
    objection = _objection(groups, producers, colours)
    if objection:
        raise FoundError("drawn regions", "values", f"{objection}: {groups} of {producers} in {colours}")


def _objection(
    groups: Sequence[Sequence[int]], producers: Sequence[Sequence[int]], colours: Sequence[str | None]
) -> str:
    """Return what is wrong with groups; empty for those that can run in this order."""
    if sorted(node for group in groups for node in group) != list(range(len(producers))):
        return "each node is in one region"
    done: set[int] = set()
    for group in groups:
        if len({colours[node] for node in group}) > 1 or (len(group) > 1 and colours[group[0]] is None):
            return "a region is of one colour"
        done.update(group)
        if any(producer not in done for node in group for producer in producers[node]):
            return "a region runs after those that it reads"
    return ""
