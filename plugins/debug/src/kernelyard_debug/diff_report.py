"""DiffReport: what `diff` found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelyard_debug.difference import Difference
from kernelyard_debug.outcome import Outcome
from kernelyard_debug.plot import Point, plot


@dataclass(frozen=True)
class Layer:
    """A value of the model. number: its place in the order of the model; op: what computes it."""

    number: int
    label: str
    op: str
    type: str
    difference: Difference | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the layer as JSON data."""
        facts = {key: getattr(self, key) for key in ("number", "label", "op", "type")}
        return facts | ({"difference": self.difference.to_json()} if self.difference is not None else {})

    def __str__(self) -> str:
        mark = "x" if self.difference is not None and self.difference.kind else " "
        return f"{mark} {self.number:4} {self.op:20} {self.label}: {self.difference or 'not measured'}"


@dataclass(frozen=True)
class DiffReport:
    """The differences between two runs of a model.

    outcome: of the model's outputs. layers: those that were measured, in the model's order. first: the layer that
    departs first, after those that depart with it alone: they are in one kernel, or an error needs them all; empty
    where nothing departs.
    """

    suspect: str
    against: str
    outcome: Outcome
    layers: tuple[Layer, ...]
    first: tuple[Layer, ...]
    checks: int

    @property
    def departs(self) -> bool:
        """Return True where the two do not agree."""
        return self.outcome.fails

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "suspect": self.suspect,
            "against": self.against,
            "departs": self.departs,
            "outcome": self.outcome.to_json(),
            "first": [layer.to_json() for layer in self.first],
            "layers": [layer.to_json() for layer in self.layers],
            "checks": self.checks,
        }

    def save_plot(self, path: str | Path) -> None:
        """Write the errors of the layers as a picture (SVG)."""
        title = f"{self.suspect} against {self.against}: {self.outcome.kind}"
        points = [
            Point(each.number, f"{each.op} {each.label}", each.difference) for each in self.layers if each.difference
        ]
        Path(path).write_text(plot(title, points), encoding="utf-8")

    def __str__(self) -> str:
        lines = [f"{self.suspect} against {self.against}: {self.outcome}"]
        lines += [f"  output {name!r}: {each}" for name, each in self.outcome.outputs.items()]
        if self.layers:
            lines += ["layers measured (x: departs):", *(f"  {layer}" for layer in self.layers)]
        for first in self.first[-1:]:
            together = f" (with {', '.join(layer.op for layer in self.first[:-1])})" if len(self.first) > 1 else ""
            lines.append(f"first layer that departs: {first.label}, {first.op}{together}")
        return "\n".join(lines)
