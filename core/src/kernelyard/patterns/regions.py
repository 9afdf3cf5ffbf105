"""Groups the nodes of a graph into maximal convex regions: no path leaves a region and comes back."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(eq=False)
class Region:
    """A set of nodes of one colour.

    reads: the nodes outside that its members read. bits: what stands for it in the `ancestors` of others.
    ancestors: the bits of every region that this one depends on, directly or not.
    """

    colour: Hashable
    members: list[int]
    reads: set[int]
    bits: int
    ancestors: int


def convex_regions(
    producers: Sequence[Sequence[int]],
    colours: Sequence[Hashable | None],
    inseparable: Sequence[int | None],
) -> list[list[int]]:
    """Group neighbouring nodes of the same colour as far as that makes no cycle between groups.

    producers[i]: the nodes, all before i, that node i reads. colours[i]: None for nodes that stay alone.
    inseparable[i]: an only producer whose group the node must join (a tuple's item), or None.
    Returns the groups in an order in which they can run, each with its members in order.

    Example:
        >>> convex_regions([[], [0], [0], [1, 2]], ["a", "a", None, "a"], [None] * 4)
        [[0, 1], [2], [3]]
    """
    grouping = _Grouping()
    for node, before in enumerate(producers):
        region = grouping.add(node, before, colours[node])
        owner = inseparable[node]
        if owner is not None:
            grouping.merge(grouping.region_of[owner], region)
        elif colours[node] is not None:
            for producer in sorted(set(before), reverse=True):
                grouping.merge_if_convex(grouping.region_of[producer], grouping.region_of[node])
    return _sort_groups([sorted(region.members) for region in grouping.live], producers)


class _Grouping:
    """The graph of regions, kept free of cycles. Nodes are added in order, each is merged before the next comes."""

    def __init__(self) -> None:
        self.region_of: list[Region] = []
        self.live: dict[Region, None] = {}

    def add(self, node: int, producers: Sequence[int], colour: Hashable | None) -> Region:
        """Return a new region of one node; nodes come after their producers."""
        ancestors = 0
        for region in {self.region_of[producer] for producer in producers}:
            ancestors |= region.ancestors | region.bits
        region = Region(colour, [node], set(producers), 1 << node, ancestors)
        self.region_of.append(region)
        self.live[region] = None
        return region

    def merge_if_convex(self, producer: Region, consumer: Region) -> None:
        """Merge two neighbours of the same colour unless another path leads from the first to the second."""
        if producer is not consumer and producer.colour == consumer.colour and not self._detour(producer, consumer):
            self.merge(producer, consumer)

    def _detour(self, producer: Region, consumer: Region) -> bool:
        between = {self.region_of[node] for node in consumer.reads} - {producer, consumer}
        return any(region.ancestors & producer.bits for region in between)

    def merge(self, producer: Region, consumer: Region) -> None:
        """Make one region of two; whatever depends on it now depends on all that it depends on."""
        known = producer.ancestors
        is_newest = consumer.members == [len(self.region_of) - 1]  # nothing depends on it yet, so its bit is nowhere
        bits = producer.bits if is_newest else producer.bits | consumer.bits
        ancestors = (producer.ancestors | consumer.ancestors) & ~bits
        merged, gone = (producer, consumer) if len(producer.members) >= len(consumer.members) else (consumer, producer)
        merged.members += gone.members
        merged.bits, merged.ancestors = bits, ancestors
        for member in gone.members:
            self.region_of[member] = merged
        del self.live[gone]
        merged.reads = {node for node in merged.reads | gone.reads if self.region_of[node] is not merged}
        if is_newest and not ancestors & ~known:
            return
        before = ancestors | bits
        for region in self.live:
            if region is not merged and region.ancestors & bits:
                region.ancestors |= before


def _sort_groups(groups: list[list[int]], producers: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the groups sorted so that producers come first, otherwise by their first member."""
    number = {node: i for i, group in enumerate(groups) for node in group}
    readers: list[set[int]] = [set() for _ in groups]
    waiting = [0] * len(groups)
    for i, group in enumerate(groups):
        for read in {number[p] for node in group for p in producers[node]} - {i}:
            readers[read].add(i)
            waiting[i] += 1
    ready = [(group[0], i) for i, group in enumerate(groups) if not waiting[i]]
    heapify(ready)
    ordered: list[list[int]] = []
    while ready:
        _, i = heappop(ready)
        ordered.append(groups[i])
        for reader in readers[i]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (groups[reader][0], reader))
    return ordered
