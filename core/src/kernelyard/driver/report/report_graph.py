"""The graph of a report as SVG: groups of ops as boxes in the colour of a backend, declines beside the ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from kernelyard.driver.report.layered_layout import Layout, lay_out_in_layers
from kernelyard.runtime.report_entries import Node
from kernelyard.runtime.report_words import VIEW

MAX_BOXES = 400
MAX_ROWS = 6  # ops that a box names
MAX_LETTERS = 34  # of a line
ROW, NOTE_ROW, PADDING, STRIP = 16.0, 12.0, 6.0, 7.0
LETTER, NOTE_LETTER = 7.3, 6.1  # widths in the fonts of the page
MARGIN = 12


@dataclass(frozen=True)
class Line:
    """A line of a box; node: the op that it names, where it is one. note: why backends do not run it."""

    text: str
    node: int | None = None
    note: str = ""

    @property
    def width(self) -> float:
        return max(len(self.text) * LETTER, len(self.note) * NOTE_LETTER)

    @property
    def height(self) -> float:
        return ROW + (NOTE_ROW if self.note else 0)


@dataclass(frozen=True)
class Box:
    """Ops that are drawn together, by number, or an input or output. backends: of the ops, with how many. tensor: the
    entry function and the name of an input or output."""

    lines: tuple[Line, ...]
    nodes: tuple[int, ...] = ()
    kind: str = "ops"
    backends: tuple[tuple[str, int], ...] = ()
    tensor: tuple[str, str] = ("", "")

    @property
    def size(self) -> tuple[float, float]:
        strip = STRIP if len(self.backends) > 1 else 0
        width = max(line.width for line in self.lines) + 18
        return width, sum(line.height for line in self.lines) + 2 * PADDING + strip


def boxes_of(nodes: Sequence[Node]) -> list[Box]:
    """Return the model's inputs, its ops in an order in which they can run, and its outputs.

    Ops are boxed by group; in large models, in runs of one backend, or of any. Boxes are runs of the nodes' order, so
    no two need each other.
    """
    numbers = range(len(nodes))
    runs = [tuple(run) for _, run in groupby(numbers, key=lambda i: (nodes[i].entry, nodes[i].group))]
    if len(runs) > MAX_BOXES:
        runs = [tuple(run) for _, run in groupby(numbers, key=lambda i: (nodes[i].entry, nodes[i].backend))]
    if len(runs) > MAX_BOXES:
        size = -(-len(nodes) // MAX_BOXES)
        runs = [tuple(numbers[i : i + size]) for i in range(0, len(nodes), size)]
    reads = dict.fromkeys((node.entry, name) for node in nodes for name in node.reads)
    gives = dict.fromkeys((node.entry, name) for node in nodes for name in node.gives)
    return [
        *(Box((Line(_short(tensor[1])),), kind="input", tensor=tensor) for tensor in reads),
        *(_ops_box(nodes, run) for run in runs),
        *(Box((Line(_short(tensor[1])),), kind="output", tensor=tensor) for tensor in gives),
    ]


def _ops_box(nodes: Sequence[Node], run: tuple[int, ...]) -> Box:
    backends = Counter(nodes[i].backend for i in run).most_common()
    if len(run) <= MAX_ROWS:
        lines = [Line(_short(nodes[i].op), i, _note(nodes[i])) for i in run]
        return Box(tuple(lines), run, backends=tuple(backends))
    counts = Counter(nodes[i].op for i in run).most_common()
    texts = [_short(f"{op} ×{count}" if count > 1 else op) for op, count in counts[: MAX_ROWS - 1]]
    rest = sum(count for _, count in counts[MAX_ROWS - 1 :])
    return Box(tuple(map(Line, [*texts, *([f"{rest} more"] if rest else [])])), run, backends=tuple(backends))


def _note(node: Node) -> str:
    """Return, for an op that no library runs, the backend that declined it first, and the code."""
    if node.pattern or not node.reasons:
        return ""
    first, *more = node.reasons
    return _short(f"{first.backend}: {first.code}{f' +{len(more)}' if more else ''}")


def _short(text: str) -> str:
    """Return the ends of a long text, which tell names apart."""
    half = MAX_LETTERS // 2
    return text if len(text) <= MAX_LETTERS else f"{text[: half - 1]}…{text[-half:]}"


# --- the drawing ------------------------------------------------------------------------------------------------------
def draw(nodes: Sequence[Node], boxes: Sequence[Box], colours: Mapping[str, str]) -> str:
    """Return the SVG element.

    An op's group has its number in `data-node`, a box's the first and last in `data-nodes`.
    """
    edges = _edges(nodes, boxes)
    layout = lay_out_in_layers([box.size for box in boxes], edges)
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    shapes = [_edge(layout, i, edge) for i, edge in enumerate(edges)]
    shapes += [_box(nodes, i, box, layout.centres[i], colours) for i, box in enumerate(boxes)]
    view = f"{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}"
    return f'<svg id="graph" viewBox="{view}" width="{width:.0f}" height="{height:.0f}">{"".join(shapes)}</svg>'


def _edges(nodes: Sequence[Node], boxes: Sequence[Box]) -> list[tuple[int, int]]:
    home = {node: i for i, box in enumerate(boxes) for node in box.nodes}
    ends = {(box.kind, *box.tensor): i for i, box in enumerate(boxes)}
    edges: list[tuple[int, int]] = []
    for i, node in enumerate(nodes):
        edges += [(home[source], home[i]) for source in node.inputs if home[source] != home[i]]
        edges += [(ends["input", node.entry, name], home[i]) for name in node.reads]
        edges += [(home[i], ends["output", node.entry, name]) for name in node.gives]
    return list(dict.fromkeys(edges))


def _edge(layout: Layout, number: int, edge: tuple[int, int]) -> str:
    (x, y), *rest = layout.paths[number]
    path = f"M{x:.0f} {y:.0f}"
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        straight = abs(to_x - x) < 0.5
        path += f"V{to_y:.0f}" if straight else f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
        if not straight:
            x = to_x
        y = to_y
    return f'<path d="{path}" data-from="{edge[0]}" data-to="{edge[1]}"/>'


def _box(nodes: Sequence[Node], number: int, box: Box, centre: tuple[float, float], colours: Mapping[str, str]) -> str:
    (width, height), (x, y) = box.size, centre
    left = x - width / 2
    parts = [*_strip(box, left, y + height, width, colours)]
    body = height - (STRIP if parts else 0)
    round_ = body / 2 if box.kind != "ops" else 5
    parts.insert(0, f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{body:.1f}" rx="{round_:.0f}"/>')
    at = y + PADDING
    for line in box.lines:
        parts.append(_line(nodes, line, (left, at, width)))
        at += line.height
    if box.kind != "ops":
        return f'<g class="box {box.kind}" data-box="{number}">{"".join(parts)}</g>'
    backend = box.backends[0][0]
    label = escape(f"{', '.join(line.text for line in box.lines)} on {' and '.join(name for name, _ in box.backends)}")
    kind = "ops view" if backend == VIEW else "ops"
    facts = f'data-box="{number}" data-nodes="{box.nodes[0]}-{box.nodes[-1]}" tabindex="-1" role="button"'
    style = f'aria-label="{label}" style="--colour:{colours[backend]}"'
    return f'<g class="box {kind}" {facts} {style}>{"".join(parts)}</g>'


def _line(nodes: Sequence[Node], line: Line, place: tuple[float, float, float]) -> str:
    left, at, width = place
    middle = left + width / 2
    text = f'<text x="{middle:.1f}" y="{at + 12:.1f}">{escape(line.text)}</text>'
    if line.node is None:
        return text
    if line.note:
        text += f'<text class="note" x="{middle:.1f}" y="{at + ROW + 8:.1f}">{escape(line.note)}</text>'
    node = nodes[line.node]
    why = "".join(f"\n{reason.backend}: {reason.code}: {reason.message}" for reason in node.reasons)
    band = f'<rect class="band" x="{left:.1f}" y="{at:.1f}" width="{width:.1f}" height="{line.height:.0f}"/>'
    hover = f"<title>{escape(f'{node.name}: {node.op} on {node.backend}{why}')}</title>"
    return f'<g class="op" data-node="{line.node}">{band}{text}{hover}</g>'


def _strip(box: Box, left: float, bottom: float, width: float, colours: Mapping[str, str]) -> list[str]:
    """Below a box of several backends: which share of its ops each runs."""
    if len(box.backends) < 2:
        return []
    parts: list[str] = []
    for backend, count in box.backends:
        share = width * count / len(box.nodes)
        place = f'x="{left:.1f}" y="{bottom - STRIP + 2:.1f}" width="{share:.1f}" height="{STRIP - 2:.0f}"'
        parts.append(f'<rect class="share" {place} fill="{colours[backend]}"/>')
        left += share
    return parts
