"""CommandOracle: a user's command says whether a model has the failure."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from os import killpg
from pathlib import Path

import onnx

from kernelyard.errors import KernelyardError
from kernelyard.plugins.worker_process import cause
from kernelyard_debug.case import Case
from kernelyard_debug.errors import DebugError
from kernelyard_debug.outcome import AGREES, CRASH, ERROR, HANG, UNUSABLE, Outcome
from kernelyard_onnx_export import to_onnx

MODEL = "{model}"
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
        self.checks += 1
        try:
            model = to_onnx(case.module)
        except KernelyardError as error:
            return Outcome(UNUSABLE, error.code, str(error))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(model, path)
            return self._run(path)

    def _run(self, path: Path) -> Outcome:
        command = self.command.replace(MODEL, str(path))
        process = subprocess.Popen(
            command, shell=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            return Outcome(HANG, stage="the command")
        finally:
            _end(process)
        status = process.returncode
        if status == 0:
            return Outcome(AGREES)
        if status < 0:
            return Outcome(CRASH, cause(status), stage="the command")
        if status > 128 and status - 128 in [known.value for known in signal.Signals]:  # as shells say it
            return Outcome(CRASH, cause(128 - status), stage="the command")
        found = sorted(set(_CODE.findall(output))) or _EXCEPTION.findall(output)[-1:]
        return Outcome(ERROR, " ".join([f"exit status {status}", *found]), output.strip()[-1000:], "the command")


def _end(process: subprocess.Popen[str]) -> None:
    """End the command and all that it started."""
    with suppress(ProcessLookupError):
        killpg(process.pid, signal.SIGKILL)
    process.wait()
