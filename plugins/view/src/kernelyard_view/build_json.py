"""Builds and differences as JSON: what traces carry, and what `kernelyard diff --json` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from kernelyard.runtime.abi.spec import MAX_ITEMS, Fields, corrupted
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import MAX_COUNT, Node
from kernelyard_view.build import Buffer, Build, MemoryMap, PartRow, StepRow
from kernelyard_view.names import plain_name

KEY = "kernelyard"  # of a trace's `otherData`


def build_to_json(build: Build) -> dict[str, Any]:
    """Return a build without its passes as JSON data; `build_from_json` reads it back."""
    memory = asdict(build.memory) if build.memory is not None else None
    steps = [asdict(step) for step in build.steps]
    facts = {"title": build.title, "call_seconds": build.call_seconds, "roof": dict(build.roof)}
    return {**facts, "report": build.report.to_json(), "steps": steps, "memory": memory}


def build_from_json(value: Any, where: str) -> Build:
    """Read a build, checking everything.

    Raises: ArtifactCorruptedError.
    """
    fields = Fields(value, where)
    report = Report.from_json(fields.any("report"))
    roof = Fields(fields.any("roof"), f"{where}.roof")
    memory = fields.any("memory")
    return Build(
        fields.text("title"),
        report,
        fields.each("steps", lambda item, place: _step(Fields(item, place), len(report.nodes))),
        _number(fields, "call_seconds"),
        None if memory is None else _memory(Fields(memory, f"{where}.memory")),
        roof={name: _number(roof, name) for name in ("gflops", "gbytes") if name in roof},
    )


def _step(fields: Fields, nodes: int) -> StepRow:
    label, module, symbol = (fields.text(name) for name in ("label", "module", "symbol"))
    flops = None if fields.any("flops") is None else fields.integer("flops", most=MAX_COUNT)
    nbytes = fields.integer("nbytes", most=MAX_COUNT)
    inside = fields.each("inside", lambda item, place: _part(Fields(item, place), nodes))
    seconds, of_report = _number(fields, "seconds"), fields.indices("nodes", nodes)
    return StepRow(label, module, symbol, seconds, nbytes, flops, of_report, inside)


def _part(fields: Fields, nodes: int) -> PartRow:
    label, implementation = fields.text("label"), fields.text("implementation")
    return PartRow(label, implementation, _number(fields, "seconds"), fields.indices("nodes", nodes))


def _memory(fields: Fields) -> MemoryMap:
    def buffer(item: Any, where: str) -> Buffer:
        each = Fields(item, where)
        offset, nbytes = (each.integer(name, most=MAX_COUNT) for name in ("offset", "nbytes"))
        first, last = (each.integer(name, -1, MAX_ITEMS) for name in ("first", "last"))
        return Buffer(each.text("label"), offset, nbytes, first, last, each.any("is_input") is True)

    nbytes, weights = (fields.integer(name, most=MAX_COUNT) for name in ("nbytes", "weights"))
    return MemoryMap(nbytes, weights, fields.texts("steps"), fields.each("buffers", buffer))


def _number(fields: Fields, name: str) -> float:
    value = fields.any(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise corrupted(f"{fields.where}.{name}", value, "a number")
    return float(value)


# --- differences ------------------------------------------------------------------------------------------------------
def is_difference(value: Any) -> bool:
    """Return True for what `kernelyard diff --json` prints."""
    return isinstance(value, dict) and isinstance(value.get("layers"), list) and "against" in value


def errors_of(value: Any, where: str) -> dict[str, float]:
    """Return the relative error of each layer by name; infinite where it has NaN, or another shape.

    Raises: ArtifactCorruptedError.
    """
    return dict(_errors(value, where))


def _errors(value: Any, where: str) -> Iterator[tuple[str, float]]:
    for item, place in Fields(value, where).items("layers"):
        layer = Fields(item, place)
        name = layer.text("label")
        if "difference" in layer:
            found = Fields(layer.any("difference"), f"{place}.difference")
            is_number = found.any("relative") is not None and found.text("kind") not in ("nan", "inf", "shape")
            yield name, _number(found, "relative") if is_number else math.inf


def build_of_difference(value: Any, title: str, where: str) -> Build:
    """Return the layers of a difference, one after the other: a difference says nothing of what reads what.

    Raises: ArtifactCorruptedError.
    """
    layers = [Fields(item, place) for item, place in Fields(value, where).items("layers")]
    nodes = [
        Node("main", each.text("label"), each.text("op"), each.text("type"), "layer", "", "", number, 0, 0)
        for number, each in enumerate(layers)
    ]
    chain = tuple(replace(node, inputs=(number - 1,) if number else ()) for number, node in enumerate(nodes))
    title = f"{title}: against {Fields(value, where).text('against')}"
    return Build(title, Report("cpu", nodes=chain), errors=errors_of(value, where))


def with_errors(build: Build, errors: dict[str, float]) -> Build:
    """Return a build with the errors of its layers, which both call by the names of the model."""
    plain = {plain_name(name): error for name, error in errors.items()}
    known = {node.name: plain[plain_name(node.name)] for node in build.report.nodes if plain_name(node.name) in plain}
    return replace(build, errors=known)
