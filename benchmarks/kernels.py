"""Our generated kernels, one operator at a time, beside oneDNN's and torch's: their turns interleaved in one run.

    python benchmarks/kernels.py [--only conv] [--seconds 0.3] [--threads 1] [--json FILE]

Each case is a module of one operator, compiled for native-cpu alone and for oneDNN through its plugin; torch computes
the same where it is installed. What counts is the time of the compiled steps: copying feeds and results is left out for
ours and oneDNN's, and torch writes to memory it is given where its operator allows. Reported: the 10th percentile of
each in microseconds; the quicker of the others over ours (above 1: ours is quicker); and the share of what this machine
was just measured to do, in arithmetic or in reading memory, whichever bounds the case.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from kernel_cases import Case, cases
from peaks import Peaks, measure_peaks
from rich.console import Console
from rich.table import Table

import kernelyard as ky
from kernelyard.runtime.vm import VirtualMachine

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None

Timed = Callable[[], float]
OURS = "native-cpu"
LEAST_ROUNDS = 7


@dataclass(frozen=True)
class Row:
    """microseconds: by engine; an engine that does not have the operator is missing."""

    case: Case
    microseconds: Mapping[str, float]

    @property
    def ratio(self) -> float | None:
        """The quicker of the others over ours."""
        others = [time for engine, time in self.microseconds.items() if engine != OURS]
        return min(others) / self.microseconds[OURS] if others else None

    def share_of(self, engine: str) -> float | None:
        """oneDNN's or torch's time over ours."""
        return self.microseconds[engine] / self.microseconds[OURS] if engine in self.microseconds else None

    def gflops(self) -> float:
        return self.case.flops / self.microseconds[OURS] / 1e3

    def gbytes(self) -> float:
        return self.case.nbytes / self.microseconds[OURS] / 1e3

    def share_of_peak(self, peaks: Peaks) -> float:
        """Of arithmetic or of reading memory: the larger one is what bounds the case."""
        return max(self.gflops() / peaks.gflops, self.gbytes() / peaks.gbytes)


def clock_of(threads: int) -> Timed:
    """One thread is timed by the processor's time that it had, so that other programs disturb less."""
    return time.thread_time if threads == 1 else time.perf_counter


def compiled(case: Case, backends: Sequence[str], threads: int) -> Timed | None:
    """A call that gives the seconds of the steps of `backends` (of all, for none); None where they take nothing."""
    exe = ky.compile(case.module(), backends=list(backends))
    wanted = [n for n, module in enumerate(exe.modules) if not backends or module.kind in backends]
    machine, clock = VirtualMachine(exe, threads=threads), clock_of(threads)
    took = 0.0
    began = 0.0

    def instrument(step: Any, name: str, before: bool, result: Any, *args: Any) -> None:
        nonlocal took, began
        if before:
            began = clock()
        elif step.module in wanted:
            took += clock() - began

    def call() -> float:
        nonlocal took
        took = 0.0
        machine["main"](*case.feeds)
        return took

    machine.set_instrument(instrument)
    return call if call() else None


def of_torch(case: Case, threads: int) -> Timed | None:
    """The same by torch, None without it."""
    if torch is None or case.torch is None:
        return None
    torch.set_num_threads(threads)
    clock = clock_of(threads)
    with torch.no_grad():
        run = case.torch(torch, *(torch.from_numpy(array) for array in (*case.feeds, *case.weights)))

    def call() -> float:
        with torch.no_grad():
            start = clock()
            run()
            return clock() - start

    return call


def measure(case: Case, seconds: float, threads: int) -> Row:
    """All engines in turns for so long."""
    engines = {
        OURS: compiled(case, [], threads),
        "dnnl": compiled(case, ["dnnl"], threads),
        "torch": of_torch(case, threads),
    }
    present = {name: call for name, call in engines.items() if call is not None}
    times: dict[str, list[float]] = {name: [] for name in present}
    for call in present.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[OURS]) < LEAST_ROUNDS:
        for name, call in present.items():
            call()  # a call of another engine has filled the caches
            times[name].append(call())
    return Row(case, {name: float(np.percentile(values, 10)) * 1e6 for name, values in times.items()})


def table_of(rows: Sequence[Row], peaks: Peaks, threads: int) -> Table:
    """The rows for people."""
    title = f"{threads} thread(s), p10; machine: {peaks.gflops:.0f} GFLOP/s, reads {peaks.gbytes:.1f} GB/s"
    table = Table(
        "kind", "case", "ours us", "oneDNN us", "torch us", "ratio", "GFLOP/s", "GB/s", "of peak", title=title
    )
    for row in rows:
        others = [f"{row.microseconds[name]:.1f}" if name in row.microseconds else "-" for name in ("dnnl", "torch")]
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        numbers = [f"{row.gflops():.1f}", f"{row.gbytes():.1f}", f"{row.share_of_peak(peaks):.0%}"]
        table.add_row(row.case.kind, row.case.name, f"{row.microseconds[OURS]:.1f}", *others, ratio, *numbers)
    return table


def facts(rows: Sequence[Row], peaks: Peaks, threads: int) -> dict[str, Any]:
    """The rows for machines."""
    packages = ("kernelyard", "kernelyard-native-cpu", "kernelyard-dnnl", "llvmlite", "numpy")
    versions = {name: metadata.version(name) for name in packages}
    results = [
        {
            "kind": row.case.kind,
            "case": row.case.name,
            "microseconds": dict(row.microseconds),
            "ratio": row.ratio,
            "flops": row.case.flops,
            "bytes": row.case.nbytes,
            "share_of_peak": row.share_of_peak(peaks),
        }
        for row in rows
    ]
    return {
        "machine": platform.processor() or platform.machine(),
        "threads": threads,
        "peaks": {"gflops": peaks.gflops, "read_gbytes": peaks.gbytes},
        "versions": versions | ({"torch": torch.__version__} if torch else {}),
        "results": results,
    }


def main() -> None:
    """Measure, print a table, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose kind or name contains this")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    console = Console(width=140)
    if torch is None:
        console.print("torch is not installed: its columns stay empty")
    peaks = measure_peaks(options.threads)
    chosen = [case for case in cases() if options.only in f"{case.kind} {case.name}"]
    rows = [measure(case, options.seconds, options.threads) for case in chosen]
    console.print(table_of(rows, peaks, options.threads))
    if options.json is not None:
        options.json.write_text(json.dumps(facts(rows, peaks, options.threads), indent=2) + "\n")


if __name__ == "__main__":
    main()
