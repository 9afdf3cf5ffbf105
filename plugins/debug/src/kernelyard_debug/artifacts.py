"""Artifacts: what their steps compute, by the model's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard.ir import Expr
from kernelyard.runtime.artifact.kyar import load
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard_debug.case import Case
from kernelyard_debug.errors import DebugError
from kernelyard_debug.isolation import Announce, Finished, run_isolated
from kernelyard_debug.runners import Runner


@dataclass(frozen=True)
class Steps:
    """Hold results of a run: outputs by name, and in order those of steps with one result, by label."""

    outputs: Mapping[str, np.ndarray]
    results: Mapping[str, np.ndarray]


def run_steps(exe: Executable, feeds: Mapping[str, np.ndarray]) -> Steps:
    """Run an executable and keep what each step computes."""
    machine, results = VirtualMachine(exe, contexts=1), dict[str, np.ndarray]()

    def instrument(step: Any, name: str, before_run: bool, ret_value: Any, *args: Any) -> None:
        if not before_run and step.label and len(ret_value) == 1:
            results.pop(step.label, None)  # a later step of the same node has the node's own result
            results[step.label] = ret_value[0].numpy().copy()

    machine.set_instrument(instrument)
    outputs = machine.run(exe.main.name, dict(feeds))
    return Steps({name: tensor.numpy() for name, tensor in outputs.items()}, results)


def steps_of_artifact(path: Path, feeds: Mapping[str, np.ndarray], timeout: float) -> Steps:
    """Run an artifact in a process of its own, and return what its steps compute. Raises: DebugError."""

    def work(announce: Announce) -> Steps:
        announce("loading")
        exe = load(path)
        announce("running")
        return run_steps(exe, feeds)

    verdict = run_isolated(work, timeout)
    if isinstance(verdict, Finished):
        return verdict.value
    raise DebugError("the artifact cannot be run on these feeds", where=str(path), found=verdict)


@dataclass(frozen=True)
class ArtifactRunner(Runner):
    """Hold the results of an earlier run: arrays by the values of the model."""

    name: str
    arrays: Mapping[Expr, np.ndarray]

    def outputs(self, case: Case, announce: Announce) -> list[np.ndarray]:
        return [self.arrays[result] for result in case.results]


def replay_artifact(case: Case, name: str, steps: Steps) -> ArtifactRunner:
    """Return a runner that replays what an artifact's steps computed, for the corresponding values of a model.

    Raises: DebugError where the artifact has other outputs than the model.
    """
    if set(case.output_names) != set(steps.outputs):
        found, expected = ", ".join(steps.outputs), ", ".join(case.output_names)
        raise DebugError("the artifact has other outputs than the model", where=name, found=found, expected=expected)
    last = {var.origin: var for var in case.values if var.origin}
    arrays: dict[Expr, np.ndarray] = {
        var: steps.results[label]
        for label, var in last.items()
        if label in steps.results and steps.results[label].ndim == var.tensor_type.rank
    }
    arrays |= {result: steps.outputs[each] for each, result in zip(case.output_names, case.results, strict=True)}
    return ArtifactRunner(name, arrays)
