"""Runners: each runs a case by one implementation. The oracle compares that of the suspect with another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard.cli.model_files import is_artifact
from kernelyard.cli.options import backend_list
from kernelyard.driver.compile import compile as compile_model
from kernelyard.ops.interpreter import run
from kernelyard.runtime.execute.executable import Executable
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass
from kernelyard_debug.case import Case
from kernelyard_debug.errors import DebugError
from kernelyard_debug.isolation import Announce, Failed, Finished, run_isolated

RUNNING = "running"
PASS = "pass "  # before the name of a pass that is announced
REFERENCE, ONNXRUNTIME, NATIVE_CPU = "reference", "onnxruntime", "native-cpu"


class Runner(ABC):
    """Runs a case. name: shown in reports."""

    name: str

    @abstractmethod
    def outputs(self, case: Case, announce: Announce) -> list[np.ndarray]:
        """Return the outputs in order; announce each stage before it begins."""


class ReferenceRunner(Runner):
    """The operators' NumPy references."""

    name = REFERENCE

    def outputs(self, case: Case, announce: Announce) -> list[np.ndarray]:
        announce(self.name)
        with np.errstate(all="ignore"):
            return run(case.module, case.feeds)


class OnnxRuntimeRunner(Runner):
    """onnxruntime, on the model written as ONNX."""

    name = ONNXRUNTIME

    def outputs(self, case: Case, announce: Announce) -> list[np.ndarray]:
        announce(self.name)
        try:
            import onnxruntime
        except ImportError as error:
            raise DebugError("onnxruntime is not installed", hint="pip install onnxruntime") from error
        from kernelyard_onnx_export import to_onnx

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        model = to_onnx(case.module).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        known = {each.name for each in session.get_inputs()}
        results = session.run(None, {name: np.asarray(feed) for name, feed in case.feeds.items() if name in known})
        return [np.asarray(result) for result in results]


class Announcing(Instrument):
    """Announces each pass before it runs."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce

    def before_pass(self, pass_: Pass, module: object, depth: int) -> None:
        self._announce(PASS + pass_.name)


@dataclass(frozen=True)
class CompiledRunner(Runner):
    """`kernelyard.compile` with some arguments."""

    name: str = "kernelyard"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def compile_case(self, case: Case, announce: Announce, *instruments: Instrument) -> Executable:
        """Return the executable; `instruments` watch its passes."""
        given = [*self.arguments.get("instruments", ()), *instruments]
        arguments = {**self.arguments, "instruments": [Announcing(announce), *given]}
        announce("compiling")
        return compile_model(case.module, **arguments)

    def outputs(self, case: Case, announce: Announce) -> list[np.ndarray]:
        exe = self.compile_case(case, announce)
        announce(RUNNING)
        return [tensor.numpy() for tensor in exe.run(dict(case.feeds)).values()]


@dataclass(frozen=True)
class ReplayRunner(Runner):
    """Replays the results that another runner computed for the only case that it is given."""

    name: str
    arrays: list[np.ndarray]

    @staticmethod
    def of(case: Case, runner: Runner, timeout: float) -> ReplayRunner:
        """Run a case once, in an isolated process. Raises: DebugError if the runner fails."""
        verdict = run_isolated(lambda announce: runner.outputs(case, announce), timeout)
        if isinstance(verdict, Finished):
            return ReplayRunner(runner.name, verdict.value)
        found = verdict.facts["message"] if isinstance(verdict, Failed) else verdict.reason
        raise DebugError("the other runner cannot run this model", where=runner.name, found=found)

    def outputs(self, case: Case, announce: Announce) -> list[np.ndarray]:
        return self.arrays


def runner_of(name: str, arguments: Mapping[str, Any]) -> Runner:
    """Return the runner of a name: "reference", "onnxruntime", or backends in order of preference, as "native-cpu".

    arguments: of `compile`, of which another placement keeps target and options alone: it computes in float32.
    Raises: DebugError.
    """
    if name == REFERENCE:
        return ReferenceRunner()
    if name == ONNXRUNTIME:
        return OnnxRuntimeRunner()
    if Path(name).is_file() and is_artifact(Path(name)):
        raise DebugError("an artifact cannot be compiled in parts", found=name, expected="it is for `kernelyard diff`")
    kept = {key: arguments[key] for key in ("target", "options") if key in arguments}
    return CompiledRunner(name, {**kept, "backends": [] if name == NATIVE_CPU else backend_list(name)})
