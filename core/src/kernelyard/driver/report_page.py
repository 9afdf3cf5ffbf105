"""A report as one HTML page that needs nothing else: the graph coloured by backend, coverage, and every reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template

from kernelyard.driver.layered_layout import Layout, layered_layout
from kernelyard.runtime.report import SYMBOL_SIZE, VIEW, Node, Report

MAX_BOXES = 400
MAX_ROWS = 6  # ops that a box names
ROW, PADDING, LETTER = 16.0, 6.0, 6.7
LIBRARY_COLOURS = ("#2f6fde", "#d9822b", "#2e9e6b", "#a855c7", "#c2417c", "#0f9bb0")
OTHER_COLOURS = ("#8a93a3", "#b3a38c", "#9aa88f")
VIEW_COLOUR = "#b9c1cc"
NO_PATTERN = "no-pattern"  # no backend that takes part has a pattern that ends in the op
MEASURES = (("ops", "ops"), ("FLOPs", "flops"), ("bytes", "bytes"))


@dataclass(frozen=True)
class Box:
    """Ops that are drawn together, by number; what the box says; the colour that it has."""

    nodes: tuple[int, ...]
    lines: tuple[str, ...]
    colour: str
    kind: str = "ops"


def report_page(report: Report, title: str) -> str:
    """The page as HTML text.

    Models of up to some hundreds of ops are drawn group by group; larger ones are collapsed into runs of one backend.
    """
    colours = colours_of(report)
    boxes = _boxes(report.nodes, colours)
    data = {"nodes": [_facts(node) for node in report.nodes], "colours": colours}
    template = Template(files("kernelyard.driver").joinpath("report_page.html").read_text(encoding="utf-8"))
    drawn = [box for box in boxes if box.kind == "ops"]
    collapsed = (
        "" if len(drawn) == _groups(report.nodes) else f"{len(report.nodes)} ops are drawn as {len(drawn)} boxes. "
    )
    return template.substitute(
        title=escape(title),
        summary=escape(report.summary),
        target=escape(report.target),
        legend=_legend(report, colours),
        bars=_bars(report, colours),
        reasons=_reasons(report, colours),
        graph=_graph(report.nodes, boxes),
        note=escape(f"{collapsed}FLOPs and bytes are estimates, each symbolic dimension taken as {SYMBOL_SIZE}."),
        data=json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
    )


def colours_of(report: Report) -> dict[str, str]:
    """A colour for each backend: strong for those that took regions, pale for those that run the rest."""
    took = dict.fromkeys(region.backend for region in report.regions)
    others = [name for name in report.coverage if name not in took and name != VIEW]
    chosen = {name: LIBRARY_COLOURS[i % len(LIBRARY_COLOURS)] for i, name in enumerate(took)}
    chosen |= {name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)}
    return {**chosen, **({VIEW: VIEW_COLOUR} if VIEW in report.coverage else {})}


def _facts(node: Node) -> dict[str, object]:
    names = ("name", "op", "type", "backend", "pattern", "function", "flops", "bytes")
    facts: dict[str, object] = {name: getattr(node, name) for name in names}
    return {**facts, "reasons": [[r.backend, r.code, r.pattern, r.message] for r in node.reasons]}


# --- what is drawn as one box -----------------------------------------------------------------------------------------
def _groups(nodes: Sequence[Node]) -> int:
    return len({(node.entry, node.group) for node in nodes})


def _boxes(nodes: Sequence[Node], colours: dict[str, str]) -> list[Box]:
    """Boxes in an order in which they can run, then the model's inputs and outputs.

    Boxes are runs of the nodes' order, so no two need each other.
    """
    numbers = range(len(nodes))
    runs = [tuple(run) for _, run in groupby(numbers, key=lambda i: (nodes[i].entry, nodes[i].group))]
    if len(runs) > MAX_BOXES:
        runs = [tuple(run) for _, run in groupby(numbers, key=lambda i: (nodes[i].entry, nodes[i].backend))]
    if len(runs) > MAX_BOXES:
        size = -(-len(nodes) // MAX_BOXES)
        runs = [tuple(numbers[i : i + size]) for i in range(0, len(nodes), size)]
    boxes = [Box(run, _lines([nodes[i] for i in run]), _colour([nodes[i] for i in run], colours)) for run in runs]
    reads = dict.fromkeys((node.entry, name) for node in nodes for name in node.reads)
    gives = dict.fromkeys((node.entry, name) for node in nodes for name in node.gives)
    boxes = [*(Box((), (name,), "", "input") for _, name in reads), *boxes]
    return [*boxes, *(Box((), (name,), "", "output") for _, name in gives)]


def _lines(nodes: Sequence[Node]) -> tuple[str, ...]:
    if len(nodes) <= MAX_ROWS:
        return tuple(node.op for node in nodes)
    counts = Counter(node.op for node in nodes).most_common()
    lines = [f"{op} ×{count}" if count > 1 else op for op, count in counts[: MAX_ROWS - 1]]
    rest = sum(count for _, count in counts[MAX_ROWS - 1 :])
    return (*lines, *([f"{rest} more"] if rest else []))


def _colour(nodes: Sequence[Node], colours: dict[str, str]) -> str:
    return colours[Counter(node.backend for node in nodes).most_common(1)[0][0]]


# --- the drawing ------------------------------------------------------------------------------------------------------
def _edges(nodes: Sequence[Node], boxes: Sequence[Box]) -> list[tuple[int, int]]:
    home = {node: i for i, box in enumerate(boxes) for node in box.nodes}
    reads = iter([i for i, box in enumerate(boxes) if box.kind == "input"])
    gives = iter([i for i, box in enumerate(boxes) if box.kind == "output"])
    inputs = dict(zip(dict.fromkeys((n.entry, name) for n in nodes for name in n.reads), reads, strict=True))
    outputs = dict(zip(dict.fromkeys((n.entry, name) for n in nodes for name in n.gives), gives, strict=True))
    edges: dict[tuple[int, int], None] = {}
    for i, node in enumerate(nodes):
        edges |= {(home[source], home[i]): None for source in node.inputs if home[source] != home[i]}
        edges |= {(inputs[node.entry, name], home[i]): None for name in node.reads}
        edges |= {(home[i], outputs[node.entry, name]): None for name in node.gives}
    return list(edges)


def _graph(nodes: Sequence[Node], boxes: Sequence[Box]) -> str:
    sizes = [(max(map(len, box.lines)) * LETTER + 22, len(box.lines) * ROW + 2 * PADDING) for box in boxes]
    edges = _edges(nodes, boxes)
    layout = layered_layout(sizes, edges)
    margin = 12
    width, height = layout.width + 2 * margin, layout.height + 2 * margin
    shapes = [_edge(layout, i, edge) for i, edge in enumerate(edges)]
    shapes += [_box(nodes, i, box, sizes[i], layout.centres[i]) for i, box in enumerate(boxes)]
    view = f"{-margin} {-margin} {width:.0f} {height:.0f}"
    return f'<svg id="graph" viewBox="{view}" width="{width:.0f}" height="{height:.0f}">{"".join(shapes)}</svg>'


def _edge(layout: Layout, number: int, edge: tuple[int, int]) -> str:
    (x, y), *rest = layout.paths[number]
    path = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        straight = abs(to_x - x) < 0.5
        path += f"V{to_y:.1f}" if straight else f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        if not straight:
            x = to_x
        y = to_y
    return f'<path d="{path}" data-from="{edge[0]}" data-to="{edge[1]}"/>'


def _box(nodes: Sequence[Node], number: int, box: Box, size: tuple[float, float], centre: tuple[float, float]) -> str:
    (width, height), (x, y) = size, centre
    left = x - width / 2
    round_ = height / 2 if box.kind != "ops" else 5
    style = f' style="--colour:{box.colour}"' if box.colour else ""
    parts = [f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round_:.0f}"/>']
    one_each = len(box.lines) == len(box.nodes)
    for i, line in enumerate(box.lines):
        at = y + PADDING + ROW * i
        text = f'<text x="{x:.1f}" y="{at + 12:.1f}">{escape(line)}</text>'
        if one_each:
            node = nodes[box.nodes[i]]
            hover = f"<title>{escape(f'{node.name}: {node.op} on {node.backend}')}</title>"
            band = f'<rect class="band" x="{left:.1f}" y="{at:.1f}" width="{width:.1f}" height="{ROW:.0f}"/>'
            text = f'<g class="op" data-node="{box.nodes[i]}">{band}{text}{hover}</g>'
        parts.append(text)
    numbers = f' data-nodes="{box.nodes[0]}-{box.nodes[-1]}" tabindex="0"' if box.nodes else ""
    return f'<g class="box {box.kind}" data-box="{number}"{numbers}{style}>{"".join(parts)}</g>'


# --- what stands around it --------------------------------------------------------------------------------------------
def _legend(report: Report, colours: dict[str, str]) -> str:
    return "".join(
        f'<span class="key"><i style="background:{colours[name]}"></i>{escape(name)}'
        f" <small>{work['ops']:.0f} ops</small></span>"
        for name, work in report.coverage.items()
    )


def _bars(report: Report, colours: dict[str, str]) -> str:
    rows: list[str] = []
    for label, measure in MEASURES:
        parts = [
            (name, work[f"{measure}_fraction"]) for name, work in report.coverage.items() if work[f"{measure}_fraction"]
        ]
        pieces = "".join(
            f'<span style="width:{100 * share:.3f}%;background:{colours[name]}"'
            f' title="{escape(name)} {100 * share:.1f} %">'
            f"{f'{100 * share:.1f} %' if share > 0.08 else ''}</span>"
            for name, share in parts
        )
        rows.append(f'<div class="row"><label>{label}</label><div class="bar">{pieces}</div></div>')
    return "".join(rows)


def _reasons(report: Report, colours: dict[str, str]) -> str:
    """Reasons of what no library runs, those that concern most work first."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for i, node in enumerate(report.nodes):
        if not node.pattern:
            for reason in node.reasons:
                rows.setdefault((reason.backend, reason.code, node.op), []).append(i)
            if not node.reasons and node.backend != VIEW:
                rows.setdefault(("any", NO_PATTERN, node.op), []).append(i)
    if not rows:
        return "<p>Libraries run all of it.</p>"
    ranked = sorted(rows.items(), key=lambda row: (-sum(report.nodes[i].flops for i in row[1]), -len(row[1]), row[0]))
    lines = [
        f'<tr tabindex="0" data-nodes="{" ".join(map(str, numbers))}"><td>{escape(backend)}'
        f"<td><code>{escape(code)}</code><td>{escape(op)}<td>×{len(numbers)}"
        for (backend, code, op), numbers in ranked
    ]
    return f"<table><tr><th>backend<th>code<th>op<th>times{''.join(lines)}</table>"
