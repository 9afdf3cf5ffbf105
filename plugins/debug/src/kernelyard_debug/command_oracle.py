"""CommandOracle: a user's command says whether a model has the failure."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import onnx

from kernelyard.errors import KernelyardError
from kernelyard.plugins.sandbox.worker_process import cause
from kernelyard_debug.case import Case
from kernelyard_debug.errors import DebugError
from kernelyard_debug.outcome import AGREES, COMMAND, CRASH, ERROR, HANG, UNUSABLE, Outcome
from kernelyard_onnx_export import to_onnx

MODEL = "{model}"
NOTHING: Mapping[str, str] = MappingProxyType({})
_CODE = re.compile(r"\[?\b(KY\d{3})\b")
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt))\b", re.MULTILINE)


@dataclass
class CommandOracle:
    """Runs a command on a case that is written as ONNX; another exit status than 0 means that the failure is there.

    Its signature: the exit status, the codes of Kernelyard's errors that it printed, else the exception that it ended
    with. timeout: seconds of one run.
    """

    command: str
    timeout: float
    checks: int = 0

    def __post_init__(self) -> None:
        if MODEL not in self.command:
            raise DebugError("the command does not name the model", found=self.command, expected=f"{MODEL} in it")

    def locating(self, case: Case) -> Outcome:
        """Return what comes of a case; a command does not say where it fails."""
        return self(case)

    def __call__(self, case: Case) -> Outcome:
        """Return what comes of a case: "unusable" where it cannot be written as ONNX."""
        try:
            model = to_onnx(case.module)
        except KernelyardError as error:
            self.checks += 1
            return Outcome(UNUSABLE, error.code, str(error))
        with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(model, path)
            return self.run(path)[0]

    def run(self, path: Path, environment: Mapping[str, str] = NOTHING) -> tuple[Outcome, str]:
        """Run the command on a model's file, with more variables set; return what comes of it, and what it printed."""
        self.checks += 1
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(
                self.command.replace(MODEL, shlex.quote(str(path))),
                shell=True,
                start_new_session=True,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
            try:
                status: int | None = process.wait(timeout=self.timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
            printed.seek(0)
            output = printed.read().decode(errors="replace")
        return _outcome(status, output), output


def _outcome(status: int | None, output: str) -> Outcome:
    """Return what an exit status says, None for no end, and the errors that were printed."""
    if status is None:
        return Outcome(HANG, stage=COMMAND)
    if status == 0:
        return Outcome(AGREES)
    if status < 0:
        return Outcome(CRASH, cause(status), stage=COMMAND)
    if status > 128 and status - 128 in [known.value for known in signal.Signals]:  # as shells say it
        return Outcome(CRASH, cause(128 - status), stage=COMMAND)
    found = sorted(set(_CODE.findall(output))) or _EXCEPTION.findall(output)[-1:]
    return Outcome(ERROR, " ".join([f"exit status {status}", *found]), output.strip()[-1000:], COMMAND)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
