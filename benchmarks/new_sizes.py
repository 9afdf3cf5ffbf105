"""Measure a run with new sizes beside one with sizes that were run before.

    python benchmarks/new_sizes.py model.onnx INPUT AXIS SIZE [SIZE ...] [--threads 1 2] [--rounds 5]

The model's feeds lie beside it, as NAME.npz; one axis of one input takes the sizes in turn (random numbers), the
others stay. For each size: milliseconds of the first run, the least of some later ones, and their ratio. Of the rounds,
each in a process of its own that has seen the feeds as they lie there, and the sizes before this one, the least counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path

import numpy as np

import kernelyard as ky

WARM_RUNS = 5


def run(exe: ky.Executable, feeds: dict[str, np.ndarray]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    exe.run(feeds)
    return 1e3 * (time.perf_counter() - start)


def measure(args: argparse.Namespace, threads: int) -> list[tuple[float, float]]:
    """For each size, milliseconds of its first run and of the least later one, by a program that is new."""
    known = dict(np.load(args.model.with_suffix(".npz")))
    shape, dtype, random = known[args.input].shape, known[args.input].dtype, np.random.default_rng(0)
    exe = ky.compile(args.model, target="cpu")
    exe.threads = threads
    run(exe, known)
    times: list[tuple[float, float]] = []
    for size in args.sizes:
        given = (*shape[: args.axis], size, *shape[args.axis + 1 :])
        feeds = known | {args.input: random.random(given, np.float32).astype(dtype)}
        times.append((run(exe, feeds), min(run(exe, feeds) for _ in range(WARM_RUNS))))
    return times


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("input")
    parser.add_argument("axis", type=int)
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    # A process for each round: what a library keeps for its process would be there the second time.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for threads in args.threads:
            rounds = [pool.apply(measure, (args, threads)) for _ in range(args.rounds)]
            for size, *times in zip(args.sizes, *rounds, strict=True):
                first, warm = map(min, zip(*times, strict=True))
                print(
                    f"{threads} threads, {size}: first {first:.1f} ms, later {warm:.1f} ms, {first / warm:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
