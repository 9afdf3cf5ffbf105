"""Measure batch jobs on Dask and on Ray: two workers beside one, and one beside a plain loop.

    python benchmarks/batch_jobs.py [--rows 130000] [--what loops loop dask ray] [--width 512]

Needs `pip install 'dask[distributed]' 'ray[data]' pyarrow`. Each worker computes `--rows` rows: two workers are given
twice the rows of one, 256 in a call, on one thread each, from Parquet to Parquet. They should take a worker 20 s or
more. An engine is set up, and has run a small job, before it counts: starting processes is not part of any figure.

Rows per second are all rows of a job, divided by the time from the call that begins it to its return. "Steady" leaves
out what an engine does once for a job. On Dask it is the rows of all parts of results but the first of each worker,
divided by the time from the last of those to the last of all; on Ray, whose actors start and load the model for each
job, the rows of calls while all actors computed.

`loops` are the same rows by loops written by hand, in processes of their own: two at once do not have twice the rows
per second of one where they share memory, and no engine can do better. With 24 layers of 512 x 512 the weights fit the
last cache of many processors; with 12 of 1024 x 1024 (`--width 1024 --layers 12`) they need not. Overhead is in
processor time of all the engine's processes, less what they take while idle, beside that of one plain `loop`.
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

BATCH, SHARD = 256, 2048
WHAT = ["loops", "loop", "dask", "ray"]
# By default Dask watches its event loops every 20 ms and stacks every 10, which takes 5 % of a processor.
LONG_TASKS = {"distributed.admin.tick.interval": "500ms", "distributed.worker.profile.enabled": False}
Job = Callable[[list[Path], Path], int]
"""A job writes the results of tables into a folder, and returns how many rows there are."""


class Load(NamedTuple):
    """An artifact, and a table of the rows of one worker; `width` and `layers` of the perceptron."""

    artifact: Path
    table: Path
    rows: int
    width: int
    layers: int


# --- processor time ---------------------------------------------------------------------------------------------------
def processor_seconds() -> dict[tuple[int, int], float]:
    """Return seconds on a processor of all threads of this process and its descendants, by process and thread."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[tuple[int, int], float] = {}
    for pid in parents:
        for thread in Path(f"/proc/{pid}/task").glob("*") if os.getpid() in _line(pid, parents) else ():
            with suppress(OSError):
                found[pid, int(thread.name)] = 1e-9 * int((thread / "schedstat").read_text().split()[0])
    return found


def _line(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid:
        yield pid
        pid = parents.get(pid, 0)


class Figures(NamedTuple):
    """Hold a run: rows per second as a whole and while steady, and seconds of processors for a row."""

    rate: float
    steady_rate: float
    used: float


# --- the jobs ---------------------------------------------------------------------------------------------------------
def plain(load: Load) -> Job:
    """Return a loop in this process, as one writes it by hand."""
    exe = ky.load(load.artifact, 1)
    schema = pa.schema([("y", pa.list_(pa.float32(), load.width))])

    def run(tables: list[Path], folder: Path) -> int:
        done = 0
        for table in tables:
            for shard in pq.ParquetFile(table).iter_batches(SHARD, use_threads=False):
                path = folder / f"{done:09}.parquet"
                with pq.ParquetWriter(path, schema, use_dictionary=False) as results:  # floats do not repeat
                    for start in range(0, len(shard), BATCH):
                        x = np.asarray(shard.column("h0").slice(start, BATCH).flatten()).reshape(-1, load.width)
                        y = exe.run({"h0": x})[f"h{load.layers}"].numpy()
                        column = pa.FixedSizeListArray.from_arrays(y.ravel(), load.width)
                        results.write_table(pa.table({"y": column}, schema))
                done += len(shard)
        return done

    return run


def loops_rate(load: Load, count: int) -> float:
    """Return the rows per second of so many plain loops at once, in a process each."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(count), context.Queue()
    processes = [context.Process(target=_timed_loop, args=(load, start, found)) for _ in range(count)]
    for process in processes:
        process.start()
    seconds = [found.get() for _ in processes]
    for process in processes:
        process.join()
    return sum(load.rows / each for each in seconds)


def _timed_loop(load: Load, start: Any, found: Any) -> None:
    run = plain(load)
    with tempfile.TemporaryDirectory() as folder:
        run([small_table(load.table)], Path(folder))
        start.wait()
        before = time.perf_counter()
        run([load.table], Path(folder))
        found.put(time.perf_counter() - before)


@contextmanager
def dask(load: Load, workers: int) -> Iterator[Job]:
    """Yield a batch job by Dask's executor."""
    from dask.config import set as configured
    from distributed import Client, LocalCluster

    local = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with configured(LONG_TASKS), LocalCluster(**local) as cluster, Client(cluster) as client:

        def run(tables: list[Path], folder: Path) -> int:
            given = load.artifact, tables, folder
            executor = client.get_executor()
            return predict_table(*given, executor=executor, threads=1, shard_rows=SHARD, batch_rows=BATCH).rows

        yield run


@contextmanager
def ray(load: Load, workers: int) -> Iterator[Job]:
    """Yield a pipeline of Ray Data; its reader makes large blocks, which are cut so that actors have equal shares."""
    import ray.data

    calls = calls_of(load)

    class Timed(Predictor):
        """Note when each call ended: parts are written in bursts, long after."""

        def __call__(self, feed: Any) -> Any:
            result = super().__call__(feed)
            with calls.open("a") as file:
                file.write(f"{os.getpid()} {time.time()} {len(next(iter(feed.values())))}\n")
            return result

    def run(tables: list[Path], folder: Path) -> int:
        rows = ray.data.read_parquet(list(map(str, tables)))
        rows = rows.repartition(target_num_rows_per_block=SHARD)
        pool = ray.data.ActorPoolStrategy(size=workers)
        given = (str(load.artifact), 1)
        rows = rows.map_batches(Timed, fn_constructor_args=given, compute=pool, batch_size=BATCH, num_cpus=1)
        rows.write_parquet(str(folder))
        return sum(pq.ParquetFile(each).metadata.num_rows for each in folder.glob("*.parquet"))

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a cluster of its own, on this machine alone
    ray.init("local", num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)  # one for reading and writing
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield run
    finally:
        ray.shutdown()


# --- tables -----------------------------------------------------------------------------------------------------------
def write_tables(load: Load) -> None:
    """Write the table of a worker's rows, and a small one, with a shard in each row group."""
    random = np.random.default_rng(0)
    for path, rows in ((load.table, load.rows), (small_table(load.table), 2 * SHARD)):
        with pq.ParquetWriter(path, pa.schema([("h0", pa.list_(pa.float32(), load.width))])) as whole:
            for start in range(0, rows, SHARD):
                x = random.standard_normal(min(SHARD, rows - start) * load.width, np.float32)
                columns = {"h0": pa.FixedSizeListArray.from_arrays(x, load.width)}
                whole.write_table(pa.table(columns, whole.schema), SHARD)


def small_table(table: Path) -> Path:
    """Return the table of a job that only starts what has to start."""
    return table.with_name(f"small-{table.name}")


def tables_of(table: Path, workers: int) -> list[Path]:
    """Return a path of the same table for each worker; Ray reads a path that it is given twice only once."""
    paths = [table, *(table.with_name(f"{i}-{table.name}") for i in range(1, workers))]
    for path in paths[1:]:
        if not path.exists():
            path.hardlink_to(table)
    return paths


# --- measuring --------------------------------------------------------------------------------------------------------
def run_of(job: Job, load: Load, workers: int, idle: float, is_first_small: bool = True) -> Figures:
    """Return the figures of a run, after a small one. idle: seconds of waiting that show what processes take anyway."""
    if is_first_small:
        with tempfile.TemporaryDirectory() as folder:
            job(tables_of(small_table(load.table), workers), Path(folder))
    before = processor_seconds()
    time.sleep(idle)
    at_rest = _since(before) / idle if idle else 0.0
    with tempfile.TemporaryDirectory() as folder:
        begin, before = time.perf_counter(), processor_seconds()
        rows = job(tables_of(load.table, workers), Path(folder))
        seconds = time.perf_counter() - begin
        used = _since(before) - at_rest * seconds
        parts = sorted(part.stat().st_mtime for part in Path(folder).glob("*.parquet"))
    assert rows == workers * load.rows
    if calls_of(load).exists():  # Ray's, whose actors have ended with their processor time
        return Figures(rows / seconds, steady_rate(calls_of(load)), np.nan)
    later = (len(parts) - workers) / len(parts) * rows
    return Figures(rows / seconds, later / (parts[-1] - parts[workers - 1]) if later else np.nan, used / rows)


def calls_of(load: Load) -> Path:
    """Return the file that has a line for each call: process, end in seconds, rows."""
    return load.table.with_name("calls.txt")


def steady_rate(calls: Path) -> float:
    """Return the rows per second while all processes computed, and forget the calls."""
    found = [line.split() for line in calls.read_text().splitlines()]
    calls.unlink()
    ends: dict[str, list[float]] = {}
    for pid, end, _ in found:
        ends.setdefault(pid, []).append(float(end))
    start, stop = max(map(min, ends.values())), min(map(max, ends.values()))
    return sum(int(rows) for _, end, rows in found if start < float(end) <= stop) / (stop - start)


def _since(before: dict[tuple[int, int], float]) -> float:
    """Return the seconds of processors since then; threads that have ended count as far as they were seen."""
    return sum(value - before.get(key, 0.0) for key, value in processor_seconds().items())


def measure_loops(load: Load, rounds: int) -> None:
    """Print the rows per second of two plain loops beside those of one."""
    found = [(loops_rate(load, 1), loops_rate(load, 2)) for _ in range(rounds)]
    one, two = (statistics.median(each[i] for each in found) for i in (0, 1))
    ratio = statistics.median(two / one for one, two in found)
    print(f"loops: {one:.0f} rows/s, two at once {two:.0f}: {ratio:.2f} times", flush=True)


def measure_loop(load: Load, rounds: int) -> float:
    """Print the figures of one plain loop, and return its seconds of a processor for a row."""
    found = [run_of(plain(load), load, 1, 0.0) for _ in range(rounds)]
    _print_figures("loop", found, 0.0)
    return statistics.median(each.used for each in found)


def measure_engine(name: str, load: Load, rounds: int, base: float) -> None:
    """Print one engine's figures. base: what `measure_loop` found, 0 where it was not asked."""
    make = {"dask": dask, "ray": ray}[name]
    found: dict[int, list[Figures]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, figures in found.items():
            with make(load, workers) as job:  # Ray's actors start anew for each job, whatever ran before
                figures.append(run_of(job, load, workers, 2.0, is_first_small=name != "ray"))
    for workers, figures in found.items():
        _print_figures(f"{name}, {workers}", figures, base)
    for title, i in (("rows/s", 0), ("steady", 1)):
        ratio = statistics.median(two[i] / one[i] for one, two in zip(found[1], found[2], strict=True))
        print(f"{name}: 2 workers / 1: {ratio:.2f} ({title})", flush=True)


def _print_figures(name: str, found: list[Figures], base: float) -> None:
    rate, steady, used = (statistics.median(each[i] for each in found) for i in range(3))
    above = f", {100 * (used / base - 1):+.1f} %" if base else ""
    processors = f"; {1e6 * used:.0f} us of a processor{above}" if used == used else ""
    print(f"{name}: {rate:.0f} rows/s, steady {steady:.0f}{processors}", flush=True)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=130_000, help="of each worker")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--what", nargs="+", default=WHAT, choices=WHAT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        load = Load(folder / "net.kyar", folder / "rows.parquet", args.rows, args.width, args.layers)
        ky.compile(model_file(folder, load.width, load.layers)).save(load.artifact)
        write_tables(load)
        base = 0.0
        for each in args.what:
            if each == "loops":
                measure_loops(load, args.rounds)
            elif each == "loop":
                base = measure_loop(load, args.rounds)
            else:
                measure_engine(each, load, args.rounds, base)


if __name__ == "__main__":
    main()
