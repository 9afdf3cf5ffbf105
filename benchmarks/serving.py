"""Measure what a server meets: many callers at once, of one executable or of a clone each, and waiting for requests.

    python benchmarks/serving.py [NAME ...] [--callers 1 2 4 8 64] [--threads 1 2] [--rounds 7] [--seconds 0.5]

Callers are threads that call without a pause, in turns of so many seconds: all of them one executable, or each a clone
of its own, loaded from the same artifact. Reported are calls per second, and those of the most callers over those of
the best number. An idle process has run its model and waits: the share of a processor that it takes. `loads.py`
measures a set of one processor and a CPU quota.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from models import HERE, model_file

import kernelyard as ky

MODELS = ("mlp_b32", "mobilenetv2", "minilm_s128")
PROCESSORS = len(os.sched_getaffinity(0))
IDLE_SECONDS = 5.0
WARM_UP = 0.25  # of a turn, before calls are counted


def calls_per_second(
    executables: Sequence[ky.Executable], feeds: Mapping[str, np.ndarray], callers: int, seconds: float
) -> float:
    """Return the calls of so many threads together while all of them call; they take executables in turn."""
    counts = [0] * callers
    goes_on = True

    def call(number: int) -> None:
        exe = executables[number % len(executables)]
        while goes_on:
            exe.run(feeds)
            counts[number] += 1

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for each in threads:
        each.start()
    time.sleep(WARM_UP * seconds)  # new threads, and memory for each
    before, start = sum(counts), time.perf_counter()
    time.sleep(seconds)
    rate = (sum(counts) - before) / (time.perf_counter() - start)
    goes_on = False
    for each in threads:
        each.join()
    return rate


def measure_callers(
    model: Path, threads: int, callers: Sequence[int], clones: bool, rounds: int, seconds: float
) -> dict[int, float]:
    """Return the median calls per second for each number of callers, which take turns; clones: each has its own."""
    exe, feeds = ky.compile(model), dict(np.load(model.with_suffix(".npz")))
    exe.threads = threads
    data = exe.to_bytes()
    executables = [ky.load(data, threads) for _ in range(max(callers))] if clones else [exe]
    for each in executables:
        each.run(feeds)
    found: dict[int, list[float]] = {count: [] for count in callers}
    for _ in range(rounds):
        for count in callers:
            found[count].append(calls_per_second(executables, feeds, count, seconds))
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


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=MODELS)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4, 8, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, PROCESSORS}))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--models", type=Path, default=HERE / "build" / "models")
    args = parser.parse_args()
    models = [model_file(name, args.models, sys.executable).absolute() for name in args.names]

    heads = " | ".join(f"{count} callers" for count in args.callers)
    print(f"| model | threads | executables | {heads} | most / best | idle |")
    print(f"|---|---:|---|{'---:|' * (len(args.callers) + 2)}")
    for (model, threads), clones in itertools.product(itertools.product(models, args.threads), (False, True)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            given = model, threads, args.callers, clones, args.rounds, args.seconds
            rates = pool.apply(measure_callers, given)
            share = pool.apply(idle_share, (model, threads))
        cells = " | ".join(f"{rate:.1f}" for rate in rates.values())
        ratio = rates[max(rates)] / max(rates.values())
        kind = "clones" if clones else "one"
        print(f"| {model.stem} | {threads} | {kind} | {cells} | {ratio:.3f} | {share:.3%} |", flush=True)


if __name__ == "__main__":
    main()
