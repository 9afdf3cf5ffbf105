"""Workers of a batch job on this machine: shards are handed out, and again where a worker died."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Any, NamedTuple

from kernelyard_deploy.batch_job import Job, Shard

# Libraries' own pools: a worker has as many threads as the job says.
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Done(NamedTuple):
    """Report how a shard ended: its rows, or what went wrong, and whether it is tried again."""

    shard: Shard
    rows: int = 0
    failure: Mapping[str, Any] | None = None
    again: bool = False


def supervise_shards(job: Job, shards: Sequence[Shard], workers: int, retries: int) -> Iterator[Done]:
    """Compute shards in worker processes, in any order; a shard that failed is tried again up to `retries` times.

    A worker that dies, whatever kills it, is replaced, and counts as a failure of its shard.
    """
    waiting, failures = deque(shards), Counter[int]()
    with _pool(job) as pool:
        while waiting or pool.busy:
            while waiting and len(pool.busy) < workers:
                pool.hand_out(waiting.popleft())
            for done in pool.wait():
                failed = done.failure is not None
                failures[done.shard.number] += failed
                again = failed and failures[done.shard.number] <= retries
                if again:
                    waiting.append(done.shard)
                yield done._replace(again=again)


class _Worker:
    """Hold a process, and the shard that it computes."""

    def __init__(self, job: Job) -> None:
        environment = {**os.environ, **dict.fromkeys(_POOLS, str(job.threads))}
        command = [sys.executable, "-m", "kernelyard_deploy.batch_worker"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, encoding="utf-8", **pipes)
        self.shard: Shard | None = None
        self.send(json.dumps(asdict(job)))

    def send(self, line: str) -> None:
        """Send a line; where the worker has died, its output says so."""
        with suppress(BrokenPipeError):
            _require_pipe(self.process.stdin).write(line + "\n")
            _require_pipe(self.process.stdin).flush()

    def end(self) -> None:
        """Kill the process, and wait for its end."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                _require_pipe(pipe).close()
        self.process.wait()


def _require_pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


class _Pool:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._selector = selectors.DefaultSelector()
        self._idle: list[_Worker] = []
        self.busy: list[_Worker] = []

    def hand_out(self, shard: Shard) -> None:
        """Give a shard to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else _Worker(self._job)
        self.busy.append(worker)
        worker.shard = shard
        self._selector.register(_require_pipe(worker.process.stdout), selectors.EVENT_READ, worker)
        worker.send(str(shard.number))

    def wait(self) -> Iterator[Done]:
        """Wait for answers, and give the ends of their shards."""
        for key, _ in self._selector.select():
            worker: _Worker = key.data
            self._selector.unregister(key.fileobj)
            self.busy.remove(worker)
            shard, line = worker.shard, _require_pipe(worker.process.stdout).readline()
            assert shard is not None
            if not line.endswith("\n"):  # the end of the file: it died
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(1)  # its status says what killed it
                worker.end()
                yield Done(shard, failure={"message": f"a worker died with status {worker.process.returncode}"})
                continue
            self._idle.append(worker)
            answer = json.loads(line)
            yield Done(shard, answer.get("rows", 0), answer.get("failed"))

    def close(self) -> None:
        """End all workers."""
        for worker in (*self.busy, *self._idle):
            worker.end()
        self._selector.close()


@contextmanager
def _pool(job: Job) -> Iterator[_Pool]:
    pool = _Pool(job)
    try:
        yield pool
    finally:
        pool.close()
