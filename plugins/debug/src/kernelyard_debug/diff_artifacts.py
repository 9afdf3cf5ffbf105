"""Compare two artifacts by the steps that both have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kernelyard.runtime.artifact.kyar import load
from kernelyard_debug.artifacts import steps_of_artifact
from kernelyard_debug.diff_report import DiffReport, Layer
from kernelyard_debug.difference import difference
from kernelyard_debug.errors import DebugError
from kernelyard_debug.open_case import random_feeds, read_feeds
from kernelyard_debug.outcome import AGREES, Outcome


def diff_artifacts(
    path: Path,
    other: Path,
    feeds: Mapping[str, np.ndarray] | str | Path | None,
    tolerance: float | None,
    timeout: float,
) -> DiffReport:
    """Compare two artifacts of one model, step by step where a step of each has the same label and shape.

    Raises: DebugError where one is no artifact, or their outputs are not the same.
    """
    given = read_feeds(feeds)
    inputs = load(path).inputs
    feeds = random_feeds([(each.name, each.shape, each.dtype) for each in inputs], {}, given)
    found, expected = (steps_of_artifact(each, feeds, timeout) for each in (path, other))
    if set(found.outputs) != set(expected.outputs):
        problem = "the artifacts have other outputs"
        raise DebugError(problem, found=", ".join(found.outputs), expected=", ".join(expected.outputs))
    outputs = {name: difference(found.outputs[name], expected.outputs[name], tolerance) for name in expected.outputs}
    departing = [name for name, each in outputs.items() if each.kind]
    kind = outputs[departing[0]].kind if departing else AGREES
    layers = _layers(found.results, expected.results, tolerance)
    first = [layer for layer in layers if departing and layer.difference is not None and layer.difference.kind][:1]
    outcome = Outcome(kind, output=departing[0] if departing else "", outputs=outputs)
    return DiffReport(str(path), str(other), outcome, layers, tuple(first), 2)


def _layers(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float | None
) -> tuple[Layer, ...]:
    """Return the steps that both have."""
    layers: list[Layer] = []
    for number, (label, array) in enumerate(found.items()):
        other = expected.get(label)
        if other is not None and other.shape == array.shape:
            type_ = f"{array.shape} {array.dtype.name}"
            layers.append(Layer(number, label, "step", type_, difference(array, other, tolerance)))
    return tuple(layers)
