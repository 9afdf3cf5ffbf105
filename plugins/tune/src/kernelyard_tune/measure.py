"""Serve a pool as a worker: say what kind of machine this is, and measure work in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from kernelyard.plugins.sandbox.worker_process import Crashed, Hung, Worker, python_main
from kernelyard.runtime.installed.distributions import CORE, iterate_distributions
from kernelyard.runtime.installed.processor import processor
from kernelyard_tune.errors import MeasuringError
from kernelyard_tune.leases import cores, lease
from kernelyard_tune.work import Work, check_work, digest_of_work

# Libraries' own pools: they have as many threads as a measurement.
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_idle: defaultdict[int, list[Worker]] = defaultdict(list)  # processes that measure nothing now, by their threads


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
    packages = sorted(f"{each.name} {each.version}" for each in iterate_distributions() if each.key.startswith(CORE))
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
    with lease(threads) as leased:
        process = _process(threads)
        question = {"processors": leased.processors, "megabytes": work.limits.megabytes, "work": data.decode()}
        try:
            answer = process.ask(question, work.limits.seconds)
        except (Crashed, Hung) as failure:
            process.close()
            error = MeasuringError("nothing was measured", found=str(failure))
            if isinstance(failure, Crashed):
                raise error from failure
            answer = {"work": digest_of_work(data), "error": error.to_json()}  # elsewhere it would take as long
        else:
            _idle[threads].append(process)
        return json.dumps(answer).encode()


def _process(threads: int) -> Worker:
    """Return a process that measures with so many threads, and measures nothing now."""
    with suppress(IndexError):
        return _idle[threads].pop()
    environment = {**os.environ, **dict.fromkeys(_POOLS, str(threads))}
    return Worker(python_main("kernelyard_tune.measuring_process"), environment)


def start_processes(threads: int, most: int) -> None:
    """Start a process for each measurement that fits on this machine, at most so many: they begin meanwhile."""
    processes = [_process(threads) for _ in range(min(most, len(cores()) // threads))]
    for each in processes:
        each.start()
    _idle[threads] += processes


def end_idle_processes() -> None:
    """End the processes that `measure` has kept for the next work."""
    for processes in _idle.values():
        while processes:
            processes.pop().close()
