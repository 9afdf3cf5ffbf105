"""Serve a pool as a worker: say what kind of machine this is, and measure work in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from kernelyard.plugins.worker_process import TAIL, cause
from kernelyard.runtime.installed.distributions import CORE, installed
from kernelyard.runtime.installed.processor import processor
from kernelyard_tune.errors import MeasuringError
from kernelyard_tune.leases import cores, lease
from kernelyard_tune.work import Work, check_work, digest_of_work

# Libraries' own pools: they have as many threads as a measurement.
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LATE = "it took longer than its limit"


@dataclass(frozen=True)
class Machine:
    """Describe a worker's machine. kind: the facts that decisions hold for. slots: how many measurements fit."""

    kind: Mapping[str, str]
    slots: int

    def differences(self, other: Machine) -> str:
        """Return in words how another kind of machine differs, "" for the same kind."""
        names = [name for name in {**self.kind, **other.kind} if self.kind.get(name) != other.kind.get(name)]
        return "; ".join(f"{name}: {other.kind.get(name)}, not {self.kind.get(name)}" for name in names)


def this_machine(slots: int | None = None) -> Machine:
    """Return the machine that this runs on: processor, instruction sets, caches, and the packages of Kernelyard."""
    own = processor()
    packages = sorted(f"{each.name} {each.version}" for each in installed() if each.key.startswith(CORE))
    kind = {
        "processor": own.model,
        "instructions": hashlib.sha256(" ".join(sorted(own.flags)).encode()).hexdigest()[:16],
        "caches": ", ".join(own.caches),
        "packages": ", ".join(packages),
    }
    return Machine(kind, slots or len(cores()))


def measure(data: bytes, digest: str) -> bytes:
    """Measure work in a process that has leased cores and limits of time and memory; return its answer.

    data: `Work.to_bytes`. Raises: PoolError for other data than the digest's, MeasuringError where the process dies.
    """
    check_work(data, digest)
    work = Work.from_bytes(data)
    threads = work.tuning.threads or 1
    with lease(threads) as leased, tempfile.TemporaryFile() as errors:
        how = {"processors": leased.processors, "seconds": work.limits.seconds, "megabytes": work.limits.megabytes}
        process = subprocess.Popen(
            [sys.executable, "-m", "kernelyard_tune.measuring_process", json.dumps(how)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **dict.fromkeys(_POOLS, str(threads))},
            pass_fds=leased.files,  # the cores stay leased for as long as the process lives, should this one be killed
        )
        answer = _answer(process, data, work.limits.seconds)
        if answer is not None and process.returncode == 0:
            return answer
        late = answer is None or process.returncode == -signal.SIGALRM
        message = _LATE if late else f"the process ended with {cause(process.returncode)}"
        error = MeasuringError(f"nothing was measured: {message}", found=_last_words(errors))
        if late:  # elsewhere it would take as long
            return json.dumps({"work": digest_of_work(data), "error": error.to_json()}).encode()
        raise error


def _answer(process: subprocess.Popen[bytes], data: bytes, seconds: float) -> bytes | None:
    """Return what a process writes to its end; None where it takes too long, and is ended."""
    try:
        return process.communicate(data, timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None


def _last_words(errors: IO[bytes]) -> str | None:
    errors.seek(0)
    return errors.read()[-TAIL:].decode(errors="replace").strip() or None
