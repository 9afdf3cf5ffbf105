"""A process with one engine and one model: it makes it ready, and runs it so many times when it is told to."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIRST_RESULT_SECONDS = 300


@dataclass
class Worker:
    """One engine's process.

    cold_seconds: from its start to its first result. ready_seconds: of that, the engine making the model ready.
    peak_mib: the most memory until then. results: a file with its first results.
    """

    engine: str
    process: subprocess.Popen[str]
    cold_seconds: float
    ready_seconds: float
    peak_mib: float
    version: str
    results: Path
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, engine: str, python: str, model: Path, threads: int, folder: Path) -> Worker:
        """The process, once it has given its first results. Raises: RuntimeError with what went wrong."""
        results = folder / f"{engine.replace(' ', '_')}.npz"
        words = [python, "-m", "peers.worker", engine, str(model), str(threads), str(results)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
        began = time.perf_counter()
        process = subprocess.Popen(
            words,
            cwd=Path(__file__).parents[1],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], FIRST_RESULT_SECONDS)[0]:
            process.kill()
            raise RuntimeError(f"no first result within {FIRST_RESULT_SECONDS} s")
        line = process.stdout.readline()
        cold = time.perf_counter() - began
        said = json.loads(line) if line.strip() else {"error": f"the process ended: {process.wait()}"}
        if "error" in said:
            process.kill()
            raise RuntimeError(said["error"])
        return cls(engine, process, cold, said["ready"], said["peak_mib"], said["version"], results)

    def run(self, count: int) -> list[float]:
        """Seconds of so many calls."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def _serve(engine: str, model: Path, threads: int, results: Path) -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print does not get between

    def say(value: Any) -> None:
        channel.write(json.dumps(value) + "\n")
        channel.flush()

    try:
        from importlib import metadata

        import numpy as np

        from peers.engines import DISTRIBUTIONS, ENGINES

        feeds = dict(np.load(model.with_suffix(".npz")))
        began = time.perf_counter()
        run = ENGINES[engine](model, feeds, threads)
        ready = time.perf_counter() - began
        first = run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        np.savez(results, *first)
        say({"ready": ready, "peak_mib": peak, "version": metadata.version(DISTRIBUTIONS[engine])})
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"[:500]})
        return
    for line in sys.stdin:
        seconds: list[float] = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        say(seconds)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
