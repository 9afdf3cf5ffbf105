"""Measure the memory of a process that runs a program with random sizes, or loads and frees it, again and again.

    python benchmarks/steady_memory.py model.onnx INPUT AXIS LEAST MOST [--times 10000] [--threads 1]
    python benchmarks/steady_memory.py model.onnx --loads [--times 10000]

The model's feeds lie beside it, as NAME.npz; one axis of one input takes sizes at random from LEAST to MOST. Prints the
resident memory in MiB after some runs or loads, and what was added after the first hundred; at the end what the caches
of the program hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kernelyard as ky

SETTLED = 100


def resident_mib() -> float:
    """The resident memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def watch(times: int, step: Callable[[], object]) -> None:
    """Do a step so many times, and print what memory there is now and then."""
    settled = 0.0
    for number in range(1, times + 1):
        step()
        if number == SETTLED:
            settled = resident_mib()
        if number in (1, SETTLED) or not number % max(times // 10, 1):
            now = resident_mib()
            since = f", {now - settled:+.1f} since {SETTLED}" if settled else ""
            print(f"after {number}: {now:.1f} MiB{since}", flush=True)


def run_sizes(args: argparse.Namespace, known: dict[str, np.ndarray]) -> None:
    """Run the program with random sizes."""
    exe, random = ky.compile(args.model, target="cpu"), np.random.default_rng(0)
    exe.threads = args.threads
    given = known[args.input]

    def step() -> None:
        size = int(random.integers(args.least, args.most + 1))
        shape = (*given.shape[: args.axis], size, *given.shape[args.axis + 1 :])
        exe.run(known | {args.input: np.resize(given, shape)})

    watch(args.times, step)
    for name, info in exe.cache_info().items():
        print(f"{name}: {info}")


def load_again(args: argparse.Namespace, known: dict[str, np.ndarray]) -> None:
    """Load the artifact, run it once, and free it."""
    data = ky.compile(args.model, target="cpu").to_bytes()
    watch(args.times, lambda: ky.load(data, args.threads).run(known))


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("input", nargs="?")
    parser.add_argument("axis", type=int, nargs="?")
    parser.add_argument("least", type=int, nargs="?")
    parser.add_argument("most", type=int, nargs="?")
    parser.add_argument("--loads", action="store_true")
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if not args.loads and args.most is None:
        parser.error("the input, its axis, the least and the most size are needed")
    known = dict(np.load(args.model.with_suffix(".npz")))
    (load_again if args.loads else run_sizes)(args, known)


if __name__ == "__main__":
    main()
