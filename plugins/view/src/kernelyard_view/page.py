"""Builds as one HTML page that needs nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from kernelyard.driver.report.report_page import colours_of, page_data
from kernelyard.runtime.report_words import SYMBOL_SIZE
from kernelyard_view.build import Build, errors_of_nodes, shares_of_nodes
from kernelyard_view.graph import graph_data
from kernelyard_view.names import model_ops, plain_name

SCRIPTS = ("data.js", "graph.js", "details.js", "panels.js", "main.js")


def view_page(builds: Sequence[Build]) -> str:
    """Return the page of a build, or of two side by side, as HTML text."""
    template = Template(_asset("page.html"))
    return template.substitute(
        title=escape(" and ".join(build.title for build in builds)),
        style=_asset("style.css"),
        script="\n".join(map(_asset, SCRIPTS)),
        data=_script_json([build_data(build) for build in builds]),
    )


def build_data(build: Build) -> dict[str, Any]:
    """Return what the page knows of a build, as JSON data."""
    report = build.report
    nodes = tuple(replace(node, name=plain_name(node.name)) for node in report.nodes)
    shares = shares_of_nodes(len(report.nodes), build.steps)
    step_of: dict[int, int] = {node: number for number, step in enumerate(build.steps) for node in step.nodes}
    return {
        "title": build.title,
        "target": report.target,
        "summary": report.summary,
        "symbol": SYMBOL_SIZE,
        "colours": colours_of(report),
        **page_data(replace(report, nodes=nodes)),
        "graph": graph_data(nodes),
        "model_ops": [model_ops(node.name) for node in report.nodes],
        "steps": [asdict(step) for step in build.steps],
        "step_of": [step_of.get(number, -1) for number in range(len(report.nodes))],
        "shares": [[share.seconds, share.count] if share else None for share in shares],
        "call_seconds": build.call_seconds,
        "errors": errors_of_nodes(report.nodes, build.errors),
        "memory": asdict(build.memory) if build.memory is not None else None,
        "passes": [asdict(change) for change in build.passes],
        "roof": dict(build.roof),
    }


def _script_json(value: Any) -> str:
    """Return JSON that may stand in a script element: no text in it ends the element."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _finite(value: Any) -> Any:
    """Return the value with infinite errors as the largest float, which a page can compare; NaN as infinite."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return 1e308 if isinstance(value, float) and not math.isfinite(value) else value


def _asset(name: str) -> str:
    return files("kernelyard_view").joinpath("assets", name).read_text(encoding="utf-8")
