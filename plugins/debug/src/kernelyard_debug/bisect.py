"""Find the pass, region or kernel that makes a model fail: `bisect`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx

from kernelyard.cli.progress import Progress
from kernelyard.transform.pass_infra.bisect import BISECT_LIMIT, Bisection, Decision, decisions_of
from kernelyard_debug.case import Case
from kernelyard_debug.command_oracle import CommandOracle
from kernelyard_debug.errors import DebugError
from kernelyard_debug.halving import least_by_halves
from kernelyard_debug.open_case import Given, open_case
from kernelyard_debug.oracle import TIMEOUT, Oracle
from kernelyard_debug.outcome import UNUSABLE, Outcome
from kernelyard_debug.runners import CompiledRunner, ReplayRunner, runner_of
from kernelyard_onnx_export import to_onnx


@dataclass(frozen=True)
class BisectReport:
    """Say what makes a model fail.

    failure: of the whole compile; its place is looked for, too. culprit: the pass, region or kernel with which the
    failure comes; None where it is there without any: it is in a pass that a compile cannot do without, or in the
    references. without: what comes of the model with one fewer. total: how many there are. checks: how many it took.
    tried: limits and the kinds of what came of them, in order.
    """

    failure: Outcome
    culprit: Decision | None
    without: Outcome | None
    total: int
    checks: int
    tried: tuple[tuple[int, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "culprit": self.culprit._asdict() if self.culprit is not None else None,
            "failure": self.failure.to_json(),
            "without": self.without.to_json() if self.without is not None else None,
            "total": self.total,
            "checks": self.checks,
            "tried": [list(each) for each in self.tried],
        }

    def __str__(self) -> str:
        lines = [f"{self.total} passes, regions and kernels, {self.checks} checks: {self.failure}"]
        culprit = self.culprit
        if culprit is None:
            return "\n".join([*lines, "it fails without any of them, too: a required pass or a reference is wrong"])
        place = f" for {culprit.place}" if culprit.place else ""
        lines.append(f"it fails from number {culprit.number} on: {culprit.kind} {culprit.name}{place}")
        return "\n".join([*lines, f"with {culprit.number - 1} of them: {self.without}"])


def bisect(
    model: object,
    against: str = "reference",
    feeds: Mapping[str, np.ndarray] | str | Path | None = None,
    *,
    check: str | None = None,
    tolerance: float | None = None,
    timeout: float = TIMEOUT,
    sizes: Mapping[str, int] | None = None,
    **arguments: Any,
) -> BisectReport:
    """Find the pass, region of a backend or generated kernel that makes a compiled model fail, by binary search.

    Everything that a compile can leave out is counted, in order; a model is compiled with the first so many. Without a
    region kernels compute its ops, without a kernel the operator's reference does.

    against, feeds, tolerance, timeout, sizes, arguments: as of `diff`, but no artifact. check: a command in place of
    `against`, in which {model} stands for the path of an ONNX file, and which compiles it; it is run with the variable
    KERNELYARD_BISECT_LIMIT, and another exit status than 0 means that the failure is there.
    Raises: DebugError where the model does not fail, and what reading it raises.
    """
    with Progress("bisecting") as progress:
        if check is not None:
            with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
                command = CommandOracle(check, timeout)
                return _Search(_ByCommand(_onnx_file(model, Path(folder)), command), progress).report()
        case = open_case(Given(model, feeds, arguments, sizes or {}))
        oracle = Oracle(CompiledRunner(arguments=arguments), runner_of(against, arguments), tolerance, timeout)
        return _Search(_ByOracle(case, oracle), progress).report()


class _Limited(Protocol):
    """A model that can be checked with the first so many passes, regions and kernels; None for all."""

    @property
    def checks(self) -> int: ...

    def __call__(self, limit: int | None) -> tuple[Outcome, list[Decision]]: ...

    def locate(self) -> Outcome: ...


@dataclass
class _Search:
    limited: _Limited
    progress: Progress
    tried: dict[int, Outcome] = field(default_factory=dict)

    def report(self) -> BisectReport:
        self.progress.step("the whole compile")
        failure, decisions = self.limited(None)
        if failure.kind == UNUSABLE:
            raise DebugError("the model cannot be checked", found=failure.message)
        if not failure.fails:
            raise DebugError("the model does not fail", found=str(failure), hint="give feeds, or a tolerance")
        if not decisions:
            problem, hint = "nothing is compiled that could be left out", "the command must compile the model"
            raise DebugError(problem, hint=hint)
        total = len(decisions)
        self.tried[total] = failure
        located = self.limited.locate()
        failure = located if failure.is_same_failure(located) else failure

        def fails(limit: int) -> bool:
            self.progress.step(f"{limit} of {total}, check {self.limited.checks + 1}")
            self.tried[limit] = self.limited(limit)[0]
            return failure.is_same_failure(self.tried[limit])

        number = 0 if fails(0) else least_by_halves(0, total, fails)
        culprit, without = (decisions[number - 1], self.tried[number - 1]) if number else (None, None)
        tried = tuple((limit, outcome.kind) for limit, outcome in self.tried.items())
        return BisectReport(failure, culprit, without, total, self.limited.checks, tried)


class _ByOracle:
    """Compiles a case in processes of their own, and compares it with what another runner computed once."""

    def __init__(self, case: Case, oracle: Oracle) -> None:
        self._case = case
        self._oracle = replace(oracle, against=ReplayRunner.of(case, oracle.against, oracle.timeout))

    @property
    def checks(self) -> int:
        return self._oracle.checks

    def __call__(self, limit: int | None) -> tuple[Outcome, list[Decision]]:
        suspect, checks = self._oracle.suspect, self._oracle.checks
        assert isinstance(suspect, CompiledRunner)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as log:  # what a crash leaves

            def write(line: str) -> None:
                log.write(line + "\n")
                log.flush()

            instruments = (*suspect.arguments.get("instruments", ()), Bisection(limit, write))
            limited = CompiledRunner(suspect.name, {**suspect.arguments, "instruments": instruments})
            outcome = replace(self._oracle, suspect=limited)(self._case)
            self._oracle.checks = checks + 1
            log.seek(0)
            return outcome, list(decisions_of(log.read()))

    def locate(self) -> Outcome:
        return self._oracle.locating(self._case)


@dataclass
class _ByCommand:
    """Runs a command with the variable that limits what its compiles apply."""

    path: Path
    command: CommandOracle

    @property
    def checks(self) -> int:
        return self.command.checks

    def __call__(self, limit: int | None) -> tuple[Outcome, list[Decision]]:
        outcome, output = self.command.run(self.path, {BISECT_LIMIT: str(-1 if limit is None else limit)})
        return outcome, list(decisions_of(output))

    def locate(self) -> Outcome:
        return Outcome("")  # a command does not say where it fails


def _onnx_file(model: object, folder: Path) -> Path:
    """Return the path of a model as ONNX, which is written where the model is not such a file."""
    if isinstance(model, (str, Path)) and Path(model).suffix == ".onnx":
        return Path(model)
    path = folder / "model.onnx"
    onnx.save(to_onnx(open_case(Given(model, None)).module), path)
    return path
