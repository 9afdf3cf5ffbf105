"""Compare two runs of a model, layer by layer: `diff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard.cli.model_files import is_artifact
from kernelyard.cli.progress import Progress
from kernelyard.driver.session.precision import DEFAULT
from kernelyard.ir import Call, TupleGetItem, Var
from kernelyard.transform.pass_infra.pass_base import place_of
from kernelyard_debug.artifacts import ArtifactRunner, replay_artifact, steps_of_artifact
from kernelyard_debug.case import Case, record
from kernelyard_debug.cuts import latest_start, shortest_prefix
from kernelyard_debug.departure import DepartureSearch
from kernelyard_debug.diff_artifacts import diff_artifacts
from kernelyard_debug.diff_report import DiffReport, Layer
from kernelyard_debug.difference import TOLERANCES, Difference
from kernelyard_debug.errors import DebugError
from kernelyard_debug.open_case import Given, open_case
from kernelyard_debug.oracle import TIMEOUT, Oracle, differences
from kernelyard_debug.outcome import CRASH, ERROR, HANG, UNUSABLE, Outcome
from kernelyard_debug.runners import CompiledRunner, Runner, runner_of

BATCH = 64  # values that one check returns where all layers are asked for


def diff(
    model: object,
    against: str = "reference",
    feeds: Mapping[str, np.ndarray] | str | Path | None = None,
    *,
    tolerance: float | None = None,
    every_layer: bool = False,
    timeout: float = TIMEOUT,
    sizes: Mapping[str, int] | None = None,
    **arguments: Any,
) -> DiffReport:
    """Compare a compiled model with another runner, and find the first layer that departs.

    against: "reference" (NumPy), "onnxruntime", "native-cpu", other backends in order of preference ("dnnl"), or the
    path of an artifact. feeds: arrays by input, or an .npz file; None for random numbers. tolerance: of errors relative
    to the largest magnitude; None takes that of the dtype, or of the precision that is asked for. every_layer: measure
    all layers, where the outputs agree as well. timeout: seconds of one check. sizes: of symbolic dims, for random
    feeds. arguments: of `kernelyard.compile`. An artifact is compared with an artifact by the steps that both have.
    Raises: DebugError, and what reading the model raises.
    """
    if tolerance is None and arguments.get("precision", DEFAULT) != DEFAULT:
        tolerance = TOLERANCES["bfloat16"]
    if isinstance(model, (str, Path)) and is_artifact(Path(model)):
        return diff_artifacts(Path(model), Path(against), feeds, tolerance, timeout)
    case = open_case(Given(model, feeds, arguments, sizes or {}))
    if Path(against).is_file() and is_artifact(Path(against)):
        steps = steps_of_artifact(Path(against), case.feeds, timeout)
        other: Runner = replay_artifact(case, against, steps)
    else:
        other = runner_of(against, arguments)
    oracle = Oracle(CompiledRunner(arguments=arguments), other, tolerance, timeout)
    with Progress("comparing") as progress:
        return _Diff(case, oracle, progress).report(every_layer)


class _Diff:
    def __init__(self, case: Case, oracle: Oracle, progress: Progress) -> None:
        self.case = case
        self.oracle = oracle
        self.progress = progress
        self._made = {binding.var: binding.value for binding in case.function.bindings}
        self._numbers = {var: number for number, var in enumerate(case.values)}

    def report(self, every_layer: bool) -> DiffReport:
        outcome = self.oracle.locating(self.case)
        if outcome.kind == UNUSABLE:
            raise DebugError(
                "the other runner cannot run this model", where=self.oracle.against.name, found=outcome.message
            )
        measured: dict[Var, Difference] = {}
        first: Sequence[Var] = ()
        if outcome.kind in (ERROR, CRASH, HANG):
            first = self._shortest_part(outcome)
        elif outcome.fails:
            search = DepartureSearch(self.case, self._measure, self._measurable())
            departing = list(outcome.outputs).index(outcome.output)
            first = search.find_first_departing(self.case.results[departing])
            measured = search.measured
        if every_layer and outcome.kind not in (ERROR, CRASH, HANG):
            measured |= self._measure_all()
        return self._report(outcome, measured, first)

    def _measurable(self) -> tuple[Var, ...]:
        """Return the values that both runners provide."""
        other = self.oracle.against
        return tuple(v for v in self.case.values if not isinstance(other, ArtifactRunner) or v in other.arrays)

    def _report(self, outcome: Outcome, measured: Mapping[Var, Difference], first: Sequence[Var]) -> DiffReport:
        layers = tuple(self._layer(var, measured[var]) for var in self._numbers if var in measured)
        named = tuple(self._layer(var, measured.get(var)) for var in first)
        suspect, against = self.oracle.suspect.name, self.oracle.against.name
        return DiffReport(suspect, against, outcome, layers, named, self.oracle.checks)

    def _measure(self, values: Sequence[Var]) -> Mapping[Var, Difference] | None:
        """Return the differences of values; None where the model's own results agree meanwhile."""
        self.progress.step(f"check {self.oracle.checks + 1}, {len(values)} layers")
        outcome = self.oracle(self.case.exposing(values))
        if not outcome.fails or not outcome.outputs:
            return None
        return dict(zip(values, differences(outcome)[len(self.case.results) :], strict=True))

    def _measure_all(self) -> dict[Var, Difference]:
        values, found = self._measurable(), dict[Var, Difference]()
        for start in range(0, len(values), BATCH):
            batch = values[start : start + BATCH]
            self.progress.step(f"layers {start} to {start + len(batch)} of {len(values)}")
            outputs = differences(self.oracle(self.case.exposing(batch)))[len(self.case.results) :]
            found.update(zip(batch, outputs, strict=False))
        return found

    def _shortest_part(self, outcome: Outcome) -> tuple[Var, ...]:
        """Return the layers of the shortest part that fails alone, the first of them at the end.

        What a layer is given wrongly by a pass may only be noticed at a later one.
        """
        recorded = record(self.case)

        def fails(part: Case) -> bool:
            self.progress.step(f"check {self.oracle.checks + 1}")
            return self.oracle(part).is_same_failure(outcome)

        prefix = shortest_prefix(self.case, self.case.function.bindings, recorded, fails)
        part = latest_start(self.case, prefix, recorded, fails)
        return tuple(binding.var for binding in reversed(part))

    def _layer(self, var: Var, found: Difference | None) -> Layer:
        value = self._made.get(var)
        if isinstance(value, TupleGetItem) and isinstance(value.tuple_value, Var):
            value = self._made.get(value.tuple_value)
        op = value.op_name if isinstance(value, Call) else "input"
        return Layer(self._numbers.get(var, -1), place_of(var), op, repr(var.type), found)
