"""Measure what a server meets: many callers at once, waiting for requests, a CPU quota, a set of one processor.

    python benchmarks/serving.py [NAME ...] [--callers 1 2 4 8 64] [--threads 1 2] [--rounds 7] [--seconds 0.5]
                                 [--quota 1.5] [--python ENGINE=PATH ...]

Callers are threads that run one executable without a pause, in turns of so many seconds; reported are calls per second,
and those of the most callers over those of the best number. An idle process has run its model and waits: the share of
a processor that it takes. Under a quota (a control group of its own, where this machine lets one be made) and on one
processor, engines take turns as in `loads.py`; the ratio is the time of the best other one over ours, and the pool's
size is that of `kernelyard.runtime.abi.threads.processors`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from loads import ENGINES, Case, measure, ratios
from models import HERE, model_file

import kernelyard as ky
from kernelyard.runtime.abi.threads import processors

MODELS = ("mlp_b32", "mobilenetv2", "minilm_s128")
PROCESSORS = len(os.sched_getaffinity(0))
IDLE_SECONDS = 5.0
CPU_GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))  # v2, v1
PERIOD = 100_000


def calls_per_second(exe: ky.Executable, feeds: Mapping[str, np.ndarray], callers: int, seconds: float) -> float:
    """Return the calls of so many threads together, those that had begun included."""
    counts = [0] * callers
    until = time.perf_counter() + seconds

    def call(number: int) -> None:
        while time.perf_counter() < until:
            exe.run(feeds)
            counts[number] += 1

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    start = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(counts) / (time.perf_counter() - start)


def measure_callers(model: Path, threads: int, callers: list[int], rounds: int, seconds: float) -> dict[int, float]:
    """Return the median calls per second for each number of callers, which take turns."""
    exe, feeds = ky.compile(model), dict(np.load(model.with_suffix(".npz")))
    exe.threads = threads
    found: dict[int, list[float]] = {count: [] for count in callers}
    for _ in range(rounds):
        for count in callers:
            calls_per_second(exe, feeds, count, 0.1 * seconds)  # new threads, and memory for each
            found[count].append(calls_per_second(exe, feeds, count, seconds))
    return {count: statistics.median(rates) for count, rates in found.items()}


def idle_share(model: Path, threads: int) -> float:
    """Return the processor time of a process that has run a model and waits, over the time that passes."""
    exe, feeds = ky.compile(model), dict(np.load(model.with_suffix(".npz")))
    exe.threads = threads
    for _ in range(5):
        exe.run(feeds)
    time.sleep(0.1)  # who waits for work may spin for a moment
    before, used = time.perf_counter(), time.process_time()
    time.sleep(IDLE_SECONDS)
    return (time.process_time() - used) / (time.perf_counter() - before)


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep this process, and those that it starts, on one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def cpu_quota(quota: float) -> Iterator[None]:
    """Keep this process, and those that it starts, in a control group with a quota of so many processors.

    Raises: OSError where the machine does not let one be made.
    """
    root = next(root for root in CPU_GROUPS if (root / "cgroup.procs").exists())
    group = root / f"kernelyard-bench-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{int(quota * PERIOD)} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def pool_size() -> int:
    """Return the number of processors that a new process counts."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(processors)


def report_limited(title: str, models: list[Path], pythons: Mapping[str, str], rounds: int, seconds: float) -> None:
    """Print the pool's size, and for each model our median and 99th percentile beside the best other engine's."""
    size = pool_size()
    print(f"\n{title}: a pool of {size}\n")
    print("| model | median: best of the others / ours | 99th percentile |\n|---|---:|---:|")
    for model in models:
        with tempfile.TemporaryDirectory(prefix="kernelyard-bench-") as folder:
            rows = list(measure(Case(model, size, pythons, Path(folder)), ["idle"], rounds, seconds))
        found = [ratios(rows, "idle", size, figure)[model.stem] for figure in ("median_ms", "p99_ms")]
        print(f"| {model.stem} | {found[0]:.2f} | {found[1]:.2f} |", flush=True)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=MODELS)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4, 8, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, PROCESSORS}))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--quota", type=float, default=1.5)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--models", type=Path, default=HERE / "build" / "models")
    args = parser.parse_args()
    given = dict(text.split("=", 1) for text in args.python)
    pythons = {engine: given.get(engine, sys.executable) for engine in args.engines}
    models = [model_file(name, args.models, given.get("torch", sys.executable)).absolute() for name in args.names]

    heads = " | ".join(f"{count} callers" for count in args.callers)
    print(f"| model | threads | {heads} | most / best | idle |\n|---|{'---:|' * (len(args.callers) + 3)}")
    for model in models:
        for threads in args.threads:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rates = pool.apply(measure_callers, (model, threads, args.callers, args.rounds, args.seconds))
                share = pool.apply(idle_share, (model, threads))
            cells = " | ".join(f"{rate:.1f}" for rate in rates.values())
            ratio = rates[max(rates)] / max(rates.values())
            print(f"| {model.stem} | {threads} | {cells} | {ratio:.3f} | {share:.3%} |", flush=True)
    with one_processor():
        report_limited("One processor", models, pythons, args.rounds, args.seconds)
    try:
        with cpu_quota(args.quota):
            report_limited(f"A quota of {args.quota:g} processors", models, pythons, args.rounds, args.seconds)
    except OSError as error:
        print(f"\nNo quota is measured: this machine lets no control group be made ({error}).")


if __name__ == "__main__":
    main()
