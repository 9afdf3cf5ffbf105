"""A process with one engine and one model: it makes it ready, and runs it so many times when it is told to."""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 300.0
ARTIFACT = ".kyar"
FOLDER = Path(__file__).parents[1]


@dataclass
class Worker:
    """One engine's process.

    cold_seconds: from its start to its first result. ready_seconds: of that, the engine making the model ready, without
    the import of its package. peak_mib: the most memory until then. results: a file with its first results.
    patience: how long an answer may take. seconds, processor_seconds: what callers keep of `run`, and the time of all
    of the process's threads in each call so far.
    """

    engine: str
    process: subprocess.Popen[str]
    cold_seconds: float
    ready_seconds: float
    peak_mib: float
    version: str
    results: Path
    errors: Path
    patience: float
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)

    @classmethod
    def start(
        cls, engine: str, python: str, model: Path, threads: int, folder: Path, patience: float = PATIENCE_SECONDS
    ) -> Worker:
        """The process, once it has given its first results. Raises: RuntimeError with what went wrong.

        The model's feeds lie beside it.
        """
        name = f"{engine.replace(' ', '_')}{model.suffix}"
        results, errors = folder / f"{name}.npz", folder / f"{name}.txt"
        words = [python, "-m", "peers.worker", engine, str(model), str(threads), str(results)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled when packages are installed
        began = time.perf_counter()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        try:
            with errors.open("wb") as said:
                process = subprocess.Popen(words, cwd=FOLDER, env=environment, stderr=said, **pipes)
        except OSError as error:
            raise RuntimeError(f"{python} cannot be started: {error.strerror}") from error
        worker = cls(engine, process, 0.0, 0.0, 0.0, "", results, errors, patience)
        try:
            answer = worker.answer()
        except RuntimeError:
            worker.close()
            raise
        worker.cold_seconds = answer["first"] - began  # the clock is the machine's: every process reads the same
        worker.ready_seconds, worker.peak_mib, worker.version = (answer[n] for n in ("ready", "peak_mib", "version"))
        return worker

    def answer(self) -> Any:
        """Return the next message of the process. Raises: RuntimeError where it ended, failed, or takes too long."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], self.patience)[0]:
            self.process.kill()
            raise RuntimeError(f"no answer within {self.patience:.0f} s")
        line = self.process.stdout.readline()
        if not line.strip():
            last = self.errors.read_text(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(" ".join([f"the process ended ({self.process.wait()})", *last])[:500])
        said = json.loads(line)
        if isinstance(said, dict) and "error" in said:
            raise RuntimeError(said["error"])
        return said

    def run(self, count: int) -> list[float]:
        """Seconds of so many calls. Raises: RuntimeError."""
        self._ask(f"{count} calls")
        said = self.answer()
        self.processor_seconds += said["processor"]
        return said["seconds"]

    def begin(self, seconds: float) -> None:
        """Let the process make calls for so many seconds, and do not wait: several processes can run at a time."""
        self._ask(f"{seconds} seconds")

    def finish(self) -> list[float]:
        """Return the seconds from the end of each call to the end of the next, since `begin`. Raises: RuntimeError."""
        return self.answer()

    def _ask(self, request: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says why

    def settle(self) -> None:
        """Wait until the engine's threads sleep, for at most a second: some spin on after a call, on the cores that the
        next engine is measured on."""
        clock = _clock_of(self.process.pid)
        before, end = time.clock_gettime(clock), time.monotonic() + 1
        while time.monotonic() < end:
            time.sleep(0.02)
            now = time.clock_gettime(clock)
            if now - before < 0.001:
                return
            before = now

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(20)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait()


def _clock_of(process: int) -> int:
    """Return the clock of the processor time of a process, all threads together: see clock_getcpuclockid(3)."""
    return ~process << 3 | 2


def _peak_mib() -> float:
    """The most memory of this process so far. `getrusage` would count that of the process which started it, too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _time_calls(run: Callable[[], object], count: int) -> dict[str, list[float]]:
    """Return the seconds of so many calls, and those of all of the process's threads in each."""
    seconds: list[float] = []
    processor: list[float] = []
    for _ in range(count):
        used, start = time.process_time(), time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    return {"seconds": seconds, "processor": processor}


def _time_between(run: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds from the end of each call to the end of the next, for so long.

    It asks for no processor time: a thread that does so and has used up its slice loses its processor there, between
    two calls, which would then look as if they had never waited. (Source: Linux, kernel/sched: `task_sched_runtime`
    calls `update_curr`.)
    """
    begin = time.perf_counter()
    ends = [begin]
    while ends[-1] < begin + seconds:
        run()
        ends.append(time.perf_counter())
    return [after - before for before, after in pairwise(ends)]


def _serve(engine: str, model: Path, threads: int, results: Path) -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print does not get between

    def say(value: Any) -> None:
        channel.write(json.dumps(value) + "\n")
        channel.flush()

    try:
        import numpy as np

        from peers.engines import DISTRIBUTIONS, ENGINES, MODULES

        feeds = dict(np.load(model.with_suffix(".npz")))
        is_artifact = model.suffix == ARTIFACT
        importlib.import_module("kernelyard" if is_artifact else MODULES.get(engine, DISTRIBUTIONS[engine]))
        began = time.perf_counter()
        run = ENGINES[engine](model, feeds, threads)
        ready = time.perf_counter() - began
        first = run()
        at = time.perf_counter()
        peak = _peak_mib()
        from importlib import metadata

        np.savez(results, *first)
        say({"first": at, "ready": ready, "peak_mib": peak, "version": metadata.version(DISTRIBUTIONS[engine])})
        for line in sys.stdin:
            amount, unit = line.split()
            say(_time_calls(run, int(amount)) if unit == "calls" else _time_between(run, float(amount)))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"[:500]})


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
