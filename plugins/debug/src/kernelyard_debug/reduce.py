"""Make a failing model small, and keep its failure what it was: `reduce`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard.cli.progress import Progress
from kernelyard.errors import KernelyardError
from kernelyard.ir import Call
from kernelyard_debug.case import Case, cut_case, record
from kernelyard_debug.command_oracle import CommandOracle
from kernelyard_debug.cuts import latest_start, shortest_prefix, without_each
from kernelyard_debug.errors import DebugError
from kernelyard_debug.open_case import Given, open_case
from kernelyard_debug.oracle import TIMEOUT, Oracle
from kernelyard_debug.outcome import UNUSABLE, Outcome
from kernelyard_debug.reducers import REDUCERS, attempts
from kernelyard_debug.result_folder import save
from kernelyard_debug.runners import CompiledRunner, runner_of

ROUNDS = 3  # of all reducers
MOST_CHECKS = 400
MOST_ATTEMPTS = 12  # of one reducer in one round


@dataclass(frozen=True)
class Reduction:
    """A failing case that is small.

    failure: of the whole model; outcome: of the small one, with the same signature. ops, before: the numbers of ops of
    the two. checks: how many it took. steps: what made it smaller.
    """

    case: Case
    failure: Outcome
    outcome: Outcome
    ops: tuple[str, ...]
    before: int
    checks: int
    steps: tuple[str, ...]
    against: str
    arguments: Mapping[str, Any]

    @property
    def keeps_signature(self) -> bool:
        """Return True where the small case fails as the whole model does."""
        return self.failure.is_same_failure(self.outcome)

    def save(self, folder: str | Path) -> Path:
        """Write a folder: an ONNX model with test data, IR text, feeds, a test for pytest, and a report.

        Raises: DebugError where it cannot be written.
        """
        return save(self.case, Path(folder), self.to_json(), self.against, self.arguments)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON data."""
        facts = {name: getattr(self, name) for name in ("ops", "before", "checks", "steps", "against")}
        outcomes = {"failure": self.failure.to_json(), "outcome": self.outcome.to_json()}
        return {**facts, **outcomes, "keeps_signature": self.keeps_signature}

    def __str__(self) -> str:
        lines = [
            f"{self.before} ops reduced to {len(self.ops)}, by {self.checks} checks: {', '.join(self.ops)}",
            f"  failure: {self.outcome}",
        ]
        return "\n".join(lines)


def reduce(
    model: object,
    against: str = "reference",
    feeds: Mapping[str, np.ndarray] | str | Path | None = None,
    *,
    check: str | None = None,
    tolerance: float | None = None,
    timeout: float = TIMEOUT,
    sizes: Mapping[str, int] | None = None,
    **arguments: Any,
) -> Reduction:
    """Reduce a model that fails to a few ops that fail in the same way.

    against, feeds, tolerance, timeout, sizes, arguments: as of `diff`, but that no artifact can be compiled in parts.
    check: a command in place of `against`, in which {model} stands for the path of an ONNX file; another exit status
    than 0 means that the failure is there.
    Raises: DebugError where the model does not fail, and what reading it raises.
    """
    case = open_case(Given(model, feeds, arguments, sizes or {}))
    oracle = (
        CommandOracle(check, timeout)
        if check
        else Oracle(CompiledRunner(arguments=arguments), runner_of(against, arguments), tolerance, timeout)
    )
    with Progress("reducing") as progress:
        reducer = _Reducer(oracle, progress)
        return replace(reducer.reduce(case), against=check or against, arguments=arguments)


class _Reducer:
    def __init__(self, oracle: Oracle | CommandOracle, progress: Progress) -> None:
        self.oracle = oracle
        self.progress = progress
        self.steps: list[str] = []
        self.failure = Outcome("")
        self.outcome = self.failure
        self._size = 0

    def reduce(self, case: Case) -> Reduction:
        self.failure = self.outcome = self.oracle.locating(case)
        if self.failure.kind == UNUSABLE:
            raise DebugError("the model cannot be checked", found=self.failure.message)
        if not self.failure.fails:
            raise DebugError("the model does not fail", found=str(self.failure), hint="give feeds, or a tolerance")
        before = self._size = _count(case)
        small = self._cut(case)
        for _ in range(ROUNDS):
            smaller = self._by_reducers(small)
            if smaller is small:
                break
            small = self._cut(smaller)
        steps = tuple(self.steps)
        return Reduction(small, self.failure, self.outcome, _ops(small), before, self.oracle.checks, steps, "", {})

    def fails(self, case: Case) -> bool:
        """Check whether a case has the failure; the outcome of the last one that does is kept."""
        if self.oracle.checks >= MOST_CHECKS:
            return False
        self.progress.step(f"{self._size} ops, check {self.oracle.checks + 1}")
        outcome = self.oracle.locating(case)
        if not self.failure.is_same_failure(outcome):
            return False
        self.outcome, self._size = outcome, _count(case)
        return True

    def _cut(self, case: Case) -> Case:
        """Cut a case down to the bindings that fail, fed with recorded values."""
        try:
            recorded = record(case)
        except KernelyardError as error:
            raise DebugError("the model's values cannot be recorded", where=error.where, found=error.message) from error
        bindings = list(case.function.bindings)
        for name, cutter in (("prefix", shortest_prefix), ("suffix", latest_start), ("ops", without_each)):
            if len(bindings) == 1:
                break
            fewer = list(cutter(case, bindings, recorded, self.fails))
            if len(fewer) < len(bindings):
                self.steps.append(f"{name}: {len(bindings)} to {len(fewer)} bindings")
            bindings = fewer
        small = cut_case(case, bindings, recorded) if len(bindings) < len(case.function.bindings) else None
        return small or case

    def _by_reducers(self, case: Case) -> Case:
        for name in REDUCERS:
            smaller = self._by(name, case)
            self.steps += [name] if smaller is not case else []
            case = smaller
        return case

    def _by(self, name: str, case: Case) -> Case:
        """Take what a reducer makes of a case, as long as that fails."""
        tried, guesses = 0, attempts(REDUCERS[name], case)
        while tried < MOST_ATTEMPTS and (smaller := next(guesses, None)) is not None:
            tried += 1
            if self.fails(smaller):
                case, guesses = smaller, attempts(REDUCERS[name], smaller)
        return case


def _ops(case: Case) -> tuple[str, ...]:
    return tuple(b.value.op_name for b in case.function.bindings if isinstance(b.value, Call))


def _count(case: Case) -> int:
    return len(_ops(case))
