"""Measure the start: time to the first result, time to get ready, memory. Each start is a process of its own."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peers.worker import ARTIFACT, FOLDER, PATIENCE_SECONDS, Worker

OURS, REFERENCE = "kernelyard", "onnxruntime"
# Our targets: getting ready takes at most so many times the reference's time and so many seconds more.
READY_TIMES, READY_SECONDS = 1.5, 0.5


@dataclass(frozen=True)
class Start:
    """The least of some starts. cold_seconds: from the process's start to the first result. ready_seconds: making the
    model ready, without importing the package. peak_mib: the most memory. failure: what went wrong."""

    cold_seconds: float = math.nan
    ready_seconds: float = math.nan
    peak_mib: float = math.nan
    failure: str = ""


@dataclass(frozen=True)
class Starts:
    """A model's: ours from an artifact and from the model, and the reference's."""

    artifact: Start
    model: Start
    reference: Start

    @property
    def cold_ratio(self) -> float:
        """Our time to the first result from an artifact, over the reference's."""
        return self.artifact.cold_seconds / self.reference.cold_seconds

    @property
    def ready_limit(self) -> float:
        """Seconds that getting ready may take."""
        return READY_TIMES * self.reference.ready_seconds + READY_SECONDS

    def peak_ratio(self, ours: Start) -> float:
        """Our memory over the reference's."""
        return ours.peak_mib / self.reference.peak_mib


def measure_starts(
    model: Path, pythons: Mapping[str, str], threads: int, times: int, folder: Path, patience: float = PATIENCE_SECONDS
) -> Starts:
    """Start our engine, from the model and from its artifact, and the reference in turns.

    pythons: the interpreter of each. folder: for the artifact.
    """
    artifact = folder / f"{model.stem}{ARTIFACT}"
    found: dict[str, list[Start]] = {"artifact": [], "model": [], "reference": []}
    failure = _make_artifact(pythons[OURS], model, artifact)
    for _ in range(times):
        for kind, engine, path in (
            ("artifact", OURS, artifact),
            ("model", OURS, model),
            ("reference", REFERENCE, model),
        ):
            if kind == "artifact" and failure:
                found[kind].append(Start(failure=failure))
            else:
                found[kind].append(_start(engine, pythons[engine], path, threads, folder, patience))
    return Starts(**{kind: _least(starts) for kind, starts in found.items()})


def measure_engine(engine: str, python: str, model: Path, threads: int, times: int, folder: Path) -> Start:
    """Start any engine from the model so many times."""
    return _least([_start(engine, python, model, threads, folder, PATIENCE_SECONDS) for _ in range(times)])


def _make_artifact(python: str, model: Path, artifact: Path) -> str:
    """Compile the model into an artifact, with its feeds beside it; what went wrong."""
    code = "import sys, kernelyard as ky; ky.compile(sys.argv[1], target='cpu').save(sys.argv[2])"
    words = [python, "-c", code, str(model), str(artifact)]
    done = subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, check=False)
    if not done.returncode:
        shutil.copyfile(model.with_suffix(".npz"), artifact.with_suffix(".npz"))
    return " ".join(done.stderr.strip().splitlines()[-1:]) if done.returncode else ""


def _start(engine: str, python: str, model: Path, threads: int, folder: Path, patience: float) -> Start:
    try:
        worker = Worker.start(engine, python, model, threads, folder, patience)
    except RuntimeError as error:
        return Start(failure=str(error))
    worker.close()
    return Start(worker.cold_seconds, worker.ready_seconds, worker.peak_mib)


def _least(starts: list[Start]) -> Start:
    good = [start for start in starts if not start.failure]
    if not good:
        return starts[0]
    names = ("cold_seconds", "ready_seconds", "peak_mib")
    return Start(*(min(getattr(start, name) for start in good) for name in names))
