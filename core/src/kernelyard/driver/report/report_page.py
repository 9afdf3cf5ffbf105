"""A report as one HTML page that needs nothing else: the graph coloured by backend, coverage, and every reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template

from kernelyard.driver.report.report_graph import boxes_of, draw
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_words import SYMBOL_SIZE, VIEW

# White text is readable on each (a contrast of 4.5 at least).
LIBRARY_COLOURS = ("#2f6fde", "#a85a0c", "#1c7a4f", "#8b45b0", "#b1346e", "#0b7186")
OTHER_COLOURS = ("#5f6b7c", "#7d6547", "#5b6f4f")
VIEW_COLOUR = "#aab3c0"
NO_PATTERN = "no-pattern"  # no backend that takes part has a pattern that ends in the op
MEASURES = (("ops", "ops"), ("FLOPs", "flops"), ("bytes", "bytes"))


def report_page(report: Report, title: str) -> str:
    """Return the page as HTML text.

    Models of up to some hundreds of ops are drawn group by group; larger ones are collapsed into runs of one backend.
    """
    colours = colours_of(report)
    boxes = boxes_of(report.nodes)
    template = Template(files("kernelyard.driver.report").joinpath("report_page.html").read_text(encoding="utf-8"))
    drawn = sum(box.kind == "ops" for box in boxes)
    groups = len({(node.entry, node.group) for node in report.nodes})
    collapsed = "" if drawn == groups else f"{len(report.nodes)} ops are drawn as {drawn} boxes. "
    return template.substitute(
        title=escape(title),
        summary=escape(report.summary),
        target=escape(report.target),
        legend=_legend(report, colours),
        bars=_bars(report, colours),
        reasons=_reasons(report),
        graph=draw(report.nodes, boxes, colours),
        note=escape(f"{collapsed}FLOPs and bytes are estimates, each symbolic dimension taken as {SYMBOL_SIZE}."),
        data=json.dumps(page_data(report), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    )


def colours_of(report: Report) -> dict[str, str]:
    """Return a colour for each backend: strong for those that took regions, pale for those that run the rest."""
    took = dict.fromkeys(region.backend for region in report.regions)
    others = [name for name in report.coverage if name not in took and name != VIEW]
    chosen = {name: LIBRARY_COLOURS[i % len(LIBRARY_COLOURS)] for i, name in enumerate(took)}
    chosen |= {name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)}
    return {**chosen, **({VIEW: VIEW_COLOUR} if VIEW in report.coverage else {})}


def page_data(report: Report) -> dict[str, list]:
    """Encode a report for the page's script: texts and reasons are deduplicated, nodes refer to them by index.

    A node: name, op, type, backend, pattern, function, entry (texts), FLOPs, bytes, inputs (nodes), reasons.
    A reason: backend, code, pattern, message (texts).
    """
    texts: dict[str, int] = {}
    reasons: dict[tuple[int, ...], int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    nodes: list[list] = []
    for node in report.nodes:
        whys = [tuple(map(text, (why.backend, why.code, why.pattern, why.message))) for why in node.reasons]
        facts = (node.name, node.op, node.type, node.backend, node.pattern, node.function, node.entry)
        numbers = [reasons.setdefault(why, len(reasons)) for why in whys]
        nodes.append([*map(text, facts), node.flops, node.bytes, list(node.inputs), numbers])
    return {"texts": list(texts), "reasons": [list(why) for why in reasons], "nodes": nodes}


# --- what stands around the graph -------------------------------------------------------------------------------------
def _legend(report: Report, colours: Mapping[str, str]) -> str:
    return "".join(
        f'<span class="key"><i style="background:{colours[name]}"></i>{escape(name)} <small>{work["ops"]:.0f}'
        f" {'op' if work['ops'] == 1 else 'ops'} · {_percent(work['flops_fraction'])} of FLOPs ·"
        f" {_percent(work['bytes_fraction'])} of bytes</small></span>"
        for name, work in report.coverage.items()
    )


def _bars(report: Report, colours: Mapping[str, str]) -> str:
    rows: list[str] = []
    for label, measure in MEASURES:
        shares = {name: work[f"{measure}_fraction"] for name, work in report.coverage.items()}
        pieces = "".join(_piece(name, share, colours[name]) for name, share in shares.items() if share)
        described = escape(", ".join(f"{name} {_percent(share)}" for name, share in shares.items()))
        rows.append(
            f'<div class="row"><span class="measure">{label}</span>'
            f'<div class="bar" role="img" aria-label="{label}: {described}">{pieces}</div></div>'
        )
    return "".join(rows)


def _piece(name: str, share: float, colour: str) -> str:
    kind = "pale" if name == VIEW else "strong"
    style = f"flex-grow:{share:.6f};background:{colour}"
    text = _percent(share) if share > 0.08 else ""
    return f'<span class="{kind}" style="{style}" title="{escape(name)}: {_percent(share)}">{text}</span>'


def _percent(share: float) -> str:
    """Format with one decimal; what is not everything is never shown as 100, nor something as 0."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return "< 0.1 %" if share < 0.001 else f"{min(100 * share, 99.9):.1f} %"


def _reasons(report: Report) -> str:
    """Return the table of reasons why ops were declined, those that concern most work first."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for i, node in enumerate(report.nodes):
        if not node.pattern:
            for reason in node.reasons:
                rows.setdefault((reason.backend, reason.code, node.op), []).append(i)
            if not node.reasons and node.backend != VIEW:
                rows.setdefault(("any", NO_PATTERN, node.op), []).append(i)
    if not rows:
        return "<p>Libraries run all of it.</p>" if report.regions else "<p>No library takes part.</p>"
    ranked = sorted(rows.items(), key=lambda row: (-sum(report.nodes[i].flops for i in row[1]), -len(row[1]), row[0]))
    lines = [
        f'<tr tabindex="0" role="button" data-backend="{escape(backend)}" data-code="{escape(code)}"'
        f' data-op="{escape(op)}"><td>{escape(backend)}<td><code>{escape(code)}</code><td>{escape(op)}'
        f"<td>×{len(numbers)}"
        for (backend, code, op), numbers in ranked
    ]
    return f"<table><tr><th>backend<th>code<th>op<th>times{''.join(lines)}</table>"
