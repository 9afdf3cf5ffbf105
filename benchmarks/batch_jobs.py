"""Measure batch jobs on Dask and on Ray: two workers beside one, and one beside a plain loop.

    python benchmarks/batch_jobs.py [--rounds 5] [--rows 4096] [--engines dask ray]

Needs `pip install 'dask[distributed]' 'ray[data]' pyarrow`. All of them compute the same rows of one Parquet file, 256
in a call, on one thread for each worker, and write results; each engine is set up anew, and runs once before it counts.

Where other processes want the processors, time on the clock tells more of them than of the engines. Overhead is
therefore in processor time of all the engine's processes, less what they take while there is nothing to do; and workers
are said to be busy for as long as they compute or wait for a processor (Linux' schedstat). Two that are as busy as one,
and take as much processor time for a row, do twice its rows where there are processors for them: "by busy time".
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from serve_load import model_file

import kernelyard as ky
from kernelyard_deploy import Predictor, predict_table

WIDTH, LAYERS, BATCH = 1024, 12, 256
Job = Callable[[Path], int]
"""A job writes its results into a folder, and returns how many rows there are."""


# --- processor time ---------------------------------------------------------------------------------------------------
class Used(NamedTuple):
    """Hold seconds of threads, by process and thread: on a processor, and on one or waiting for one."""

    running: dict[tuple[int, int], float]
    busy: dict[tuple[int, int], float]

    @staticmethod
    def now() -> Used:
        """Return those of this process and of all that descend from it, since they began."""
        parents: dict[int, int] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        used = Used({}, {})
        for pid in parents:
            for thread in Path(f"/proc/{pid}/task").glob("*") if os.getpid() in _line(pid, parents) else ():
                with suppress(OSError):
                    running, waiting, _ = map(int, (thread / "schedstat").read_text().split())
                    used.running[pid, int(thread.name)] = 1e-9 * running
                    used.busy[pid, int(thread.name)] = 1e-9 * (running + waiting)
        return used


def _line(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid:
        yield pid
        pid = parents.get(pid, 0)


class Figures(NamedTuple):
    """Hold seconds of a run: on the clock, of processors, and for which the busiest thread of each process was busy."""

    clock: float
    running: float
    busy: list[float]


@contextmanager
def measured(figures: list[Figures]) -> Iterator[None]:
    """Append the figures of what is done inside. Threads that end meanwhile count as far as they were seen."""
    begin, before = time.perf_counter(), Used.now()
    yield
    after, seconds = Used.now(), time.perf_counter() - begin
    running = sum(value - before.running.get(key, 0.0) for key, value in after.running.items())
    busy: dict[int, float] = {}
    for (pid, thread), value in after.busy.items():
        busy[pid] = max(busy.get(pid, 0.0), value - before.busy.get((pid, thread), 0.0))
    figures.append(Figures(seconds, running, sorted(busy.values(), reverse=True)))


# --- the jobs ---------------------------------------------------------------------------------------------------------
def plain(artifact: Path, table: Path) -> Job:
    """Return a loop in this process, as one writes it by hand."""
    exe = ky.load(artifact, 1)

    def run(folder: Path) -> int:
        done = 0
        for number, batch in enumerate(pq.ParquetFile(table).iter_batches(BATCH)):
            x = np.asarray(batch.column("h0").flatten()).reshape(-1, WIDTH)
            y = exe.run({"h0": x})[f"h{LAYERS}"].numpy()
            pq.write_table(
                pa.table({"y": pa.FixedSizeListArray.from_arrays(y.ravel(), WIDTH)}), folder / f"{number}.pq"
            )
            done += len(y)
        return done

    return run


def two_loops(artifact: Path, table: Path, rows: int) -> float:
    """Return how many times the rows per second of one plain loop two at once have, in a process each.

    That is what the processors and their memory give; no engine can have more.
    """
    context = multiprocessing.get_context("spawn")
    seconds: dict[int, list[float]] = {}
    for count in (1, 2):
        start, found = context.Barrier(count), context.Queue()
        given = artifact, table, start, found
        processes = [context.Process(target=_timed_loop, args=given) for _ in range(count)]
        for process in processes:
            process.start()
        seconds[count] = [found.get() for _ in processes]
        for process in processes:
            process.join()
    return sum(rows / each for each in seconds[2]) / (rows / seconds[1][0])


def _timed_loop(artifact: Path, table: Path, start: Any, found: Any) -> None:
    run = plain(artifact, table)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
        start.wait()
        before = time.perf_counter()
        run(Path(folder))
        found.put(time.perf_counter() - before)


@contextmanager
def dask(artifact: Path, table: Path, workers: int) -> Iterator[Job]:
    """Yield a batch job by Dask's executor."""
    from distributed import Client, LocalCluster

    local = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
    with local as cluster, Client(cluster) as client:

        def run(folder: Path) -> int:
            given = artifact, table, folder
            executor = client.get_executor()
            return predict_table(*given, executor=executor, threads=1, shard_rows=2 * BATCH, batch_rows=BATCH).rows

        yield run


@contextmanager
def ray(artifact: Path, table: Path, workers: int) -> Iterator[Job]:
    """Yield a pipeline of Ray Data; its actors end with each run, and so load the model for each.

    The table is files of two calls each: of one file its reader makes one task, whatever it is told.
    """
    import ray.data

    files = table.with_suffix("")
    if not files.exists():
        files.mkdir()
        for number, batch in enumerate(pq.ParquetFile(table).iter_batches(2 * BATCH)):
            pq.write_table(pa.Table.from_batches([batch]), files / f"{number:04}.parquet")

    def run(folder: Path) -> int:
        rows = ray.data.read_parquet(str(files))
        pool = ray.data.ActorPoolStrategy(size=workers)
        rows.map_batches(
            Predictor, fn_constructor_args=(str(artifact), 1), compute=pool, batch_size=BATCH, num_cpus=1
        ).write_parquet(str(folder))
        return sum(pq.ParquetFile(each).metadata.num_rows for each in folder.glob("*.parquet"))

    ray.init("local", num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)  # one for reading and writing
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield run
    ray.shutdown()


# --- measuring --------------------------------------------------------------------------------------------------------
def run_of(job: Job, rows: int) -> Figures:
    """Return the figures of a run, after one that starts what has to start, without what takes time in any case."""
    idle: list[Figures] = []
    found: list[Figures] = []
    for figures in ([], found):
        with tempfile.TemporaryDirectory() as folder, measured(figures):
            assert job(Path(folder)) == rows
    with measured(idle):
        time.sleep(3)
    run, rate = found[0], idle[0].running / idle[0].clock
    return run._replace(running=run.running - rate * run.clock)


def measure(engine: str, artifact: Path, table: Path, rows: int, rounds: int) -> None:
    """Print one engine's figures."""
    make = {"dask": dask, "ray": ray}[engine]
    found: dict[str, list[Figures]] = {"plain": [], "1": [], "2": []}
    alone = plain(artifact, table)
    at_best: list[float] = []
    for _ in range(rounds):
        at_best.append(two_loops(artifact, table, rows))
        found["plain"].append(run_of(alone, rows))
        for workers in (1, 2):
            with make(artifact, table, workers) as job:
                found[str(workers)].append(run_of(job, rows))
    used = {name: 1e6 * statistics.median(each.running for each in runs) / rows for name, runs in found.items()}
    busy = {n: statistics.median(sum(each.busy[:n]) / n / each.clock for each in found[str(n)]) for n in (1, 2)}
    clock = statistics.median(one.clock / two.clock for one, two in zip(found["1"], found["2"], strict=True))
    by_busy = 2 * busy[2] / busy[1] * used["1"] / used["2"]
    print(f"{engine}: 2 workers / 1: {clock:.2f} on the clock, {by_busy:.2f} by busy time")
    print(f"  two plain loops at once / 1: {statistics.median(at_best):.2f} on the clock")
    print(f"  busy: {100 * busy[1]:.0f} % with one worker, {100 * busy[2]:.0f} % with two")
    above = ", ".join(f"{100 * (used[name] / used['plain'] - 1):.1f} % with {name}" for name in ("1", "2"))
    print(f"  processor time of a row: {used['plain']:.0f} us in the loop, above it {above}", flush=True)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--engines", nargs="+", default=["dask", "ray"], choices=["dask", "ray"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ky.compile(model_file(folder, WIDTH, LAYERS)).save(folder / "net.kyar")
        x = np.random.default_rng(0).standard_normal(args.rows * WIDTH, np.float32)
        pq.write_table(pa.table({"h0": pa.FixedSizeListArray.from_arrays(x, WIDTH)}), folder / "rows.parquet", 512)
        for engine in args.engines:
            measure(engine, folder / "net.kyar", folder / "rows.parquet", args.rows, args.rounds)


if __name__ == "__main__":
    main()
