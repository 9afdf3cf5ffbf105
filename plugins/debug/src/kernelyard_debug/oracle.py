"""Oracle: does the suspect compute what another runner computes? The one question that diff, reduce and bisect ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernelyard_debug.case import Case
from kernelyard_debug.difference import Difference, difference
from kernelyard_debug.isolation import Announce, Failed, Finished, run_isolated
from kernelyard_debug.locate import Snapshots, announce_steps, find_announced_step, wrong_pass, wrong_step
from kernelyard_debug.outcome import AGREES, CRASH, HANG, UNUSABLE, Outcome, Place, outcome_of_death, outcome_of_error
from kernelyard_debug.runners import PASS, RUNNING, CompiledRunner, Runner

TIMEOUT = 120.0  # seconds of one check
AGAINST = "against: "  # before the stages of the runner that the suspect is compared with


class _OtherWayError(Exception):
    """The runner that the suspect is compared with failed."""


@dataclass
class Oracle:
    """Compares a suspect with another runner on the same inputs, in an isolated process.

    tolerance: of relative errors, None for those of the dtypes. timeout: seconds of one check. checks: how many there
    were.
    """

    suspect: Runner
    against: Runner
    tolerance: float | None = None
    timeout: float = TIMEOUT
    checks: int = 0

    def __call__(self, case: Case) -> Outcome:
        """Return what comes of a case."""
        return self.isolate(lambda announce: self.compare(case, announce))

    def isolate(self, work: Callable[[Announce], Outcome]) -> Outcome:
        """Run some work that says what it is at; how it ends is the outcome."""
        self.checks += 1
        stages: list[str] = []

        def noting(announce: Announce) -> Outcome:
            try:
                return work(lambda stage: (stages.append(stage), announce(stage))[1])
            except _OtherWayError as error:
                return Outcome(UNUSABLE, message=str(error))
            except Exception as error:
                error.add_note(f"stage: {stages[-1] if stages else ''}")
                raise

        verdict = run_isolated(noting, self.timeout)
        if isinstance(verdict, Finished):
            return verdict.value
        if isinstance(verdict, Failed):
            stage = next((note.removeprefix("stage: ") for note in verdict.notes if note.startswith("stage: ")), "")
            return outcome_of_error(verdict, stage)
        if verdict.stage.startswith(AGAINST):
            return Outcome(UNUSABLE, message=verdict.reason, stage=verdict.stage)
        return outcome_of_death(verdict)

    def locating(self, case: Case) -> Outcome:
        """Return what comes of a case, with the place in the compiler where it fails, if that can be found."""
        outcome = self.isolate(lambda announce: self._compare_and_locate(case, announce))
        if outcome.kind in (CRASH, HANG) and outcome.stage == RUNNING and isinstance(self.suspect, CompiledRunner):
            suspect = self.suspect
            again = self.isolate(lambda announce: _step_by_step(suspect, case, announce))
            return replace(outcome, place=find_announced_step(again.stage))
        if outcome.kind in (CRASH, HANG) and outcome.stage.startswith(PASS):
            return replace(outcome, place=Place("pass", outcome.stage.removeprefix(PASS)))
        return outcome

    def compare(self, case: Case, announce: Announce) -> Outcome:
        """Run a case by both runners, in this process."""
        expected = self.compute_expected(case, announce)
        return self.outcome(case, self.suspect.outputs(case, announce), expected)

    def _compare_and_locate(self, case: Case, announce: Announce) -> Outcome:
        if not isinstance(self.suspect, CompiledRunner):
            return self.compare(case, announce)
        expected, snapshots = self.compute_expected(case, announce), Snapshots()
        exe = self.suspect.compile_case(case, announce, snapshots)
        announce(RUNNING)
        outcome = self.outcome(case, [tensor.numpy() for tensor in exe.run(dict(case.feeds)).values()], expected)
        if not outcome.fails:
            return outcome
        place = wrong_pass(case, snapshots.before_codegen, expected, self._departs)
        return replace(outcome, place=place or wrong_step(exe, case, snapshots, self._departs))

    def _departs(self, actual: np.ndarray, expected: np.ndarray) -> bool:
        return bool(difference(actual, expected, self.tolerance).kind)

    def compute_expected(self, case: Case, announce: Announce) -> list[np.ndarray]:
        """Return what the other runner computes."""
        try:
            return self.against.outputs(case, lambda stage: announce(AGAINST + stage))
        except Exception as error:
            raise _OtherWayError(f"{self.against.name}: {error}") from error

    def outcome(self, case: Case, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> Outcome:
        """Return what outputs are worth."""
        pairs = zip(case.output_names, actual, expected, strict=True)
        found = {name: difference(one, other, self.tolerance) for name, one, other in pairs}
        departing = [name for name, each in found.items() if each.kind]
        if not departing:
            return Outcome(AGREES, outputs=found)
        return Outcome(found[departing[0]].kind, output=departing[0], outputs=found)


def _step_by_step(suspect: CompiledRunner, case: Case, announce: Announce) -> Outcome:
    snapshots = Snapshots()
    announce_steps(suspect.compile_case(case, announce, snapshots), case, snapshots, announce)
    return Outcome(AGREES)


def differences(outcome: Outcome) -> list[Difference]:
    """Return the differences of the outputs, in order."""
    return list(outcome.outputs.values())
