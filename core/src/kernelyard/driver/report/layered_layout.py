"""Layered drawing of a graph: every edge points down, few cross, and boxes stand near what they are joined to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP_X, GAP_Y = 24.0, 26.0
SWEEPS = 6


@dataclass(frozen=True)
class Layout:
    """centres: of each box (x of its middle, y of its top). paths: of each edge, the points that it goes through."""

    centres: tuple[tuple[float, float], ...]
    paths: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


@dataclass
class _Item:
    """A box, or a place where a long edge passes a layer."""

    layer: int
    width: float
    height: float
    above: list[int]
    below: list[int]
    x: float = 0.0


def lay_out_in_layers(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes of the given widths and heights; each edge goes from a box to one of a higher number.

    Example:
        >>> layout = lay_out_in_layers([(60, 20), (60, 20), (60, 20)], [(0, 1), (0, 2)])
        >>> [y for _, y in layout.centres]
        [0.0, 46.0, 46.0]
    """
    layers = _layers(len(sizes), edges)
    items = [_Item(layer, width, height, [], []) for layer, (width, height) in zip(layers, sizes, strict=True)]
    routes = _routes(items, edges)
    rows: list[list[int]] = [[] for _ in range(max((item.layer for item in items), default=-1) + 1)]
    for number, item in enumerate(items):
        rows[item.layer].append(number)
    _order(items, rows)
    _place(items, rows)
    tops: list[float] = []
    y = 0.0
    for row in rows:
        tops.append(y)
        y += max(items[number].height for number in row) + GAP_Y
    left = min((item.x - item.width / 2 for item in items), default=0.0)
    for item in items:
        item.x -= left
    return Layout(
        tuple((item.x, tops[item.layer]) for item in items[: len(sizes)]),
        tuple(_points(items, rows, tops, route) for route in routes),
        max((item.x + item.width / 2 for item in items), default=0.0),
        max(0.0, y - GAP_Y),
    )


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each item: as far up as edges allow; items without predecessors move down."""
    layers = [0] * count
    has_above = [False] * count
    for source, target in sorted(edges, key=lambda edge: edge[0]):
        layers[target] = max(layers[target], layers[source] + 1)
        has_above[target] = True
    lowest: dict[int, int] = {}
    for source, target in edges:
        lowest[source] = min(lowest.get(source, layers[target]), layers[target])
    return [layer if has_above[i] else max(0, lowest.get(i, 1) - 1) for i, layer in enumerate(layers)]


def _routes(items: list[_Item], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the items that each edge goes through.

    Edges from one box share the items that they pass: they are drawn as one line that branches.
    """
    trunks: dict[int, list[int]] = {}
    routes: list[list[int]] = []
    for source, target in edges:
        trunk = trunks.setdefault(source, [source])
        length = items[target].layer - items[source].layer
        while len(trunk) < length:
            items.append(_Item(items[source].layer + len(trunk), 8.0, 0.0, [], []))
            _join(items, trunk[-1], len(items) - 1)
            trunk.append(len(items) - 1)
        _join(items, trunk[length - 1], target)
        routes.append([*trunk[:length], target])
    return routes


def _join(items: Sequence[_Item], upper: int, lower: int) -> None:
    items[upper].below.append(lower)
    items[lower].above.append(upper)


def _order(items: Sequence[_Item], rows: Sequence[list[int]]) -> None:
    """Sort each row by where its neighbours are, in sweeps down and up."""
    place = {number: float(i) for row in rows for i, number in enumerate(row)}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted: dict[int, float] = {}
            for number in row:
                near = items[number].above if down else items[number].below
                wanted[number] = sum(place[n] for n in near) / len(near) if near else place[number]
            row.sort(key=wanted.__getitem__)
            for i, number in enumerate(row):
                place[number] = i - len(row) / 2


def _place(items: Sequence[_Item], rows: Sequence[list[int]]) -> None:
    for row in rows:
        _spread(items, row, [0.0] * len(row))
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = []
            for number in row:
                item = items[number]
                near = (item.above if down else item.below) or item.above or item.below
                wanted.append(sum(items[n].x for n in near) / len(near) if near else item.x)
            _spread(items, row, wanted)


def _spread(items: Sequence[_Item], row: Sequence[int], wanted: Sequence[float]) -> None:
    """Place a row as near to the wanted positions as the widths allow, by least squares: neighbours that would overlap
    become one block at the mean of the positions that its members want.
    """
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (items[left].width + items[right].width) / 2 + GAP_X)
    blocks: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    places = [total / count for total, count in blocks for _ in range(count)]
    for number, at, offset in zip(row, places, offsets, strict=True):
        items[number].x = at + offset


def _points(
    items: Sequence[_Item], rows: Sequence[list[int]], tops: Sequence[float], route: Sequence[int]
) -> tuple[tuple[float, float], ...]:
    """Return the corners of a line from the bottom of the first box to the top of the last, straight through layers."""
    points: list[tuple[float, float]] = []
    for i, number in enumerate(route):
        item = items[number]
        top = tops[item.layer]
        bottom = top + max(items[n].height for n in rows[item.layer])
        if i > 0:
            points.append((item.x, top))
        if i == 0:
            points.append((item.x, top + item.height))
        if i < len(route) - 1:
            points.append((item.x, bottom))
    return tuple(dict.fromkeys(points))
