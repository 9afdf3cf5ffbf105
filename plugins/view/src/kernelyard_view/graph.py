"""The graph of a report as numbers that a page draws: a box for each op, input and output, and lines between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from kernelyard.driver.report.layered_layout import Layout, lay_out_in_layers
from kernelyard.runtime.report_entries import Node
from kernelyard_view.names import plain_name

MAX_LETTERS = 30  # of a line in a box
LETTER, NOTE_LETTER = 7.3, 6.1  # widths in the fonts of the page
HEIGHT, END_HEIGHT = 36.0, 22.0
LEAST_WIDTH = 76.0

Tensor = tuple[str, str]
Size = tuple[float, float]


def short(text: str, letters: int = MAX_LETTERS) -> str:
    """Return the ends of a long text, which tell names apart.

    Example:
        >>> short("encoder.layer.11.attention.self.query", 20)
        'encoder.…n.self.query'
    """
    half = letters // 2
    return text if len(text) <= letters else f"{text[: half - 2]}…{text[-half - 2 :]}"


def graph_data(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the layout: `x`, `y`, `w` and `h` of boxes, their `labels`, and `edges` with their points.

    Boxes: the model's inputs, its ops in order (`first` is the number of inputs), then its outputs. x is the middle of
    a box, y its top. An edge: from, to, and the coordinates of its points one after the other.
    """
    reads = list(dict.fromkeys((node.entry, name) for node in nodes for name in node.reads))
    gives = list(dict.fromkeys((node.entry, name) for node in nodes for name in node.gives))
    boxes = _boxes(nodes, reads, gives)
    sizes = [_size(label, op) for label, op in boxes]
    edges = _edges(nodes, reads, gives)
    counts = {"first": len(reads), "count": len(nodes), "labels": [label for label, _ in boxes]}
    return {**counts, **_round_layout(lay_out_in_layers(sizes, edges), sizes, edges)}


def _boxes(nodes: Sequence[Node], reads: Sequence[Tensor], gives: Sequence[Tensor]) -> list[tuple[str, str]]:
    """Return the label and the op of each box; those of inputs and outputs have no op."""
    inputs, outputs = ([(short(name), "") for _, name in tensors] for tensors in (reads, gives))
    return [*inputs, *((short(plain_name(node.name)), node.op) for node in nodes), *outputs]


def _round_layout(layout: Layout, sizes: Sequence[Size], edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return a layout in whole numbers, which are short to write."""
    points = [map(round, chain.from_iterable(path)) for path in layout.paths]
    return {
        "width": round(layout.width),
        "height": round(layout.height),
        "x": [round(x) for x, _ in layout.centres],
        "y": [round(y) for _, y in layout.centres],
        "w": [round(width) for width, _ in sizes],
        "h": [round(height) for _, height in sizes],
        "edges": [[*edge, *path] for edge, path in zip(edges, points, strict=True)],
    }


def _edges(nodes: Sequence[Node], reads: Sequence[Tensor], gives: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the boxes that each line joins; reads and gives: inputs and outputs, by entry function and name."""
    first, last = len(reads), len(reads) + len(nodes)
    inputs = {tensor: i for i, tensor in enumerate(reads)}
    outputs = {tensor: last + i for i, tensor in enumerate(gives)}
    edges: list[tuple[int, int]] = []
    for box, node in enumerate(nodes, first):
        edges += [(first + source, box) for source in node.inputs]
        edges += [(inputs[node.entry, name], box) for name in node.reads]
        edges += [(box, outputs[node.entry, name]) for name in node.gives]
    return list(dict.fromkeys(edges))


def _size(label: str, op: str) -> Size:
    width = max(LEAST_WIDTH, len(op) * LETTER + 18, len(label) * NOTE_LETTER + 18)
    return width, HEIGHT if op else END_HEIGHT
