"""Run a model over the rows of tables: with workers on this machine, or an executor's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelyard.runtime.api import processors
from kernelyard_deploy.batch_job import Job, Shard, failure_json, plan, run_shard
from kernelyard_deploy.errors import BatchJobError
from kernelyard_deploy.progress import progress_of
from kernelyard_deploy.publish import Place
from kernelyard_deploy.supervisor import Done, supervise_shards

SHARD_ROWS, BATCH_ROWS = 1 << 16, 1 << 10
RETRIES = 3


@dataclass(frozen=True)
class BatchReport:
    """Summarize a run of a batch job.

    rows: of the job. parts: files of results, in the order of the tables' rows. resumed: shards that an earlier run had
    computed. failures: how often a shard failed and was tried again.
    """

    rows: int
    parts: tuple[Path, ...]
    resumed: int
    failures: int

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {**asdict(self), "parts": [str(part) for part in self.parts]}


def predict_table(
    artifact: Place,
    sources: Place | Sequence[Place],
    folder: Place,
    *,
    keep: Sequence[str] = (),
    workers: int | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
    shard_rows: int = SHARD_ROWS,
    batch_rows: int = BATCH_ROWS,
    retries: int = RETRIES,
) -> BatchReport:
    """Run a model over the rows of Parquet or `.npz` tables, into a folder with a file of results for each shard.

    Columns are the model's inputs by name. Run again after it was stopped or killed, it goes on where it was; each
    row is in the results once. keep: columns that results carry on, such as keys. workers: processes on this machine,
    as many as processors unless said otherwise, each with `threads`; or executor: whose `submit` runs shards elsewhere
    (`ProcessPoolExecutor`, `dask.distributed.Client(...).get_executor()`), on files under the same paths. shard_rows:
    what is lost when a worker dies. batch_rows: of one call.
    Raises: BatchJobError; shards that failed more than `retries` times are named when all others are done.

    Example:
        predict_table("model.kyar", ["2026-10.parquet", "2026-11.parquet"], "scores", keep=["id"])
    """
    workers = workers or processors()
    if min(shard_rows, batch_rows, workers) < 1 or retries < 0:
        raise BatchJobError("rows and workers are numbers from 1 on, retries from 0 on")
    paths = [sources] if isinstance(sources, str | Path) or not isinstance(sources, Sequence) else list(sources)
    threads = threads or max(1, processors() // workers)
    job = plan(Path(artifact), [Path(each) for each in paths], Path(folder), shard_rows, batch_rows, keep, threads)
    left = job.list_remaining()
    if executor is None:
        ends = supervise_shards(job, left, min(workers, max(1, len(left))), retries)
    else:
        ends = execute_shards(job, left, executor, retries)
    failures, lost = _follow(job, left, ends)
    if lost:
        raise _gave_up(job, lost)
    for abandoned in Path(job.folder).glob(".part-*.tmp"):  # of workers that were killed
        abandoned.unlink(missing_ok=True)
    return BatchReport(job.rows, tuple(map(job.part, job.shards)), len(job.shards) - len(left), failures)


def _follow(job: Job, left: Sequence[Shard], ends: Iterator[Done]) -> tuple[int, list[Done]]:
    """Show the ends of shards as they come; returns how many attempts failed, and the ends of those that are lost."""
    failures, lost = 0, list[Done]()
    with progress_of(job.rows, job.rows - sum(shard.piece.rows for shard in left)) as advance:
        for done in ends:
            failures += done.failure is not None
            if done.failure is None:
                advance(done.rows)
            elif not done.again:
                lost.append(done)
    return failures, lost


def _gave_up(job: Job, lost: Sequence[Done]) -> BatchJobError:
    first = lost[0]
    failure = first.failure or {}
    found = " ".join(filter(None, (f"[{failure['code']}]" if failure.get("code") else "", failure.get("message"))))
    details = [f"{key}: {failure[key]}" for key in ("where", "found", "expected") if failure.get(key)]
    path = job.sources[first.shard.source][0]
    return BatchJobError(
        f"{len(lost)} of {len(job.shards)} shards failed again and again",
        where=f"{path}, shard {first.shard.number} ({first.shard.piece.rows} rows)",
        found="; ".join([found, *details]),
        hint="the other shards are done; fix the cause and run the job again: it computes only the failed shards",
    )


def execute_shards(job: Job, shards: Sequence[Shard], executor: Executor, retries: int) -> Iterator[Done]:
    """Compute shards with an executor; a shard that failed is submitted again up to `retries` times.

    Raises: BatchJobError when the executor takes no more, as one does whose process was killed.
    """
    failures, alone = Counter[int](), replace(job, shards=())  # a task needs its own shard
    running: dict[Future[int], Shard] = {}
    try:
        running.update((executor.submit(run_shard, alone, shard), shard) for shard in shards)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                shard, error = running.pop(future), future.exception()
                if isinstance(error, BrokenExecutor):
                    raise error
                if error is None:
                    yield Done(shard, future.result())
                    continue
                failures[shard.number] += 1
                again = failures[shard.number] <= retries
                if again:
                    running[executor.submit(run_shard, alone, shard)] = shard
                yield Done(
                    shard,
                    failure=failure_json(error if isinstance(error, Exception) else Exception(error)),
                    again=again,
                )
    except BrokenExecutor as error:
        hint = "run the job again with another executor: what is done is kept"
        raise BatchJobError("the executor takes no more work", found=str(error), hint=hint) from error
    finally:
        for future in running:
            with suppress(Exception):
                future.cancel()
