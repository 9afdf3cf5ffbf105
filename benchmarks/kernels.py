"""Our generated kernels, one operator at a time, beside oneDNN's and torch's: their turns interleaved in one run.

    python benchmarks/kernels.py [--only conv] [--seconds 0.3] [--threads 1] [--json FILE]

Each case is a small module, compiled for native-cpu alone and for oneDNN through its plugin; torch computes the same
where it is installed. What counts is the time of the compiled steps: copying feeds and results is left out for ours
and oneDNN's, and torch writes to memory it is given where its operator allows. Reported: the 10th percentile of each in
microseconds; oneDNN's and torch's over ours (above 1: ours is faster); the share of the arithmetic that this machine
was just measured to do; and the time of merely reading as many bytes, measured in turn too, over ours. A case below the
line of its kind is marked:

- decode (products with up to 16 rows): 0.8 of what bounds it, reading or arithmetic
- matmul, conv, grouped, depthwise: 0.6 of oneDNN
- all others: as fast as the faster of oneDNN and torch, less 3 % for what measuring differs
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from kernel_cases import Case, cases
from peaks import Peaks, Timed, measure_peaks, reader
from rich.console import Console
from rich.progress import track
from rich.table import Table

import kernelyard as ky
from kernelyard.ir import IRModule
from kernelyard.runtime.execute.virtual_machine import VirtualMachine

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None

OURS = "native-cpu"
ENGINES = (OURS, "dnnl", "torch")
READING = "reading"
LEAST_ROUNDS = 7
CONTRACTIONS = ("matmul", "conv", "grouped", "depthwise")
DECODE_SHARE, CONTRACTION_RATIO, OTHER_RATIO = 0.8, 0.6, 0.97


@dataclass(frozen=True)
class Row:
    """microseconds: by engine; an engine that does not have the operator is missing."""

    case: Case
    microseconds: Mapping[str, float]

    def ratio(self, *engines: str) -> float | None:
        """The fastest of some engines over ours."""
        others = [self.microseconds[engine] for engine in engines if engine in self.microseconds]
        return min(others) / self.microseconds[OURS] if others else None

    def share_of_arithmetic(self, peaks: Peaks) -> float:
        return self.case.flops / self.microseconds[OURS] / 1e3 / peaks.gflops

    @property
    def share_of_reading(self) -> float:
        """The time of merely reading as many bytes, measured in turn with the others, over ours."""
        return self.microseconds[READING] / self.microseconds[OURS]

    def meets_line(self, peaks: Peaks) -> bool:
        """True where the case is as fast as its kind is asked to be; also where there is nothing to compare with."""
        if self.case.kind == "decode":
            return max(self.share_of_arithmetic(peaks), self.share_of_reading) >= DECODE_SHARE
        if self.case.kind in CONTRACTIONS:
            return (self.ratio("dnnl") or CONTRACTION_RATIO) >= CONTRACTION_RATIO
        return (self.ratio("dnnl", "torch") or OTHER_RATIO) >= OTHER_RATIO


def clock_of(threads: int) -> Timed:
    """One thread is timed by the processor's time that it had, so that other programs disturb less."""
    return time.thread_time if threads == 1 else time.perf_counter


def compiled(module: IRModule, feeds: Sequence[np.ndarray], backends: Sequence[str], threads: int) -> Timed | None:
    """A call that gives the seconds of the steps; None where `backends` do not take all of them."""
    # Generated convolutions are compared with oneDNN's, not with Winograd's algorithm, which is ours too.
    options = {"dnnl": {"winograd": False}} if "dnnl" in backends else {}
    exe = ky.compile(module, backends=list(backends), options=options)
    if backends and any(module.kind not in backends for module in exe.modules):
        return None
    machine, clock = VirtualMachine(exe, threads=threads), clock_of(threads)
    took = 0.0
    began = 0.0

    def instrument(step: Any, name: str, before: bool, result: Any, *args: Any) -> None:
        nonlocal took, began
        if before:
            began = clock()
        else:
            took += clock() - began

    def call() -> float:
        nonlocal took
        took = 0.0
        machine["main"](*feeds)
        return took

    machine.set_instrument(instrument)
    return call if call() else None  # of nothing but aliases there is nothing to measure


def tensor(array: np.ndarray) -> Any:
    """An array as torch's; torch does not know NumPy's bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def of_torch(case: Case, operands: Sequence[np.ndarray], threads: int) -> Timed | None:
    """The same by torch, None without it."""
    if torch is None or case.torch is None:
        return None
    torch.set_num_threads(threads)
    clock = clock_of(threads)
    with torch.no_grad():
        run = case.torch(torch, *map(tensor, operands))

    def call() -> float:
        with torch.no_grad():
            start = clock()
            run()
            return clock() - start

    return call


def measure(case: Case, seconds: float, threads: int) -> Row:
    """All engines in turns for so long."""
    feeds, weights = [spec.array() for spec in case.feeds], [spec.array() for spec in case.weights]
    module = case.module(weights)
    engines = {
        OURS: compiled(module, feeds, [], threads),
        "dnnl": compiled(module, feeds, ["dnnl"], threads),
        "torch": of_torch(case, [*feeds, *weights], threads),
        READING: reader(case.nbytes, threads),
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
    names = ("kind", "case", "ours us", "oneDNN us", "torch us", "/ oneDNN", "/ torch", "arithmetic", "reading", "line")
    table = Table(*names, title=title)
    for row in rows:
        times = [f"{row.microseconds[name]:.1f}" if name in row.microseconds else "-" for name in ENGINES]
        ratios = [f"{ratio:.2f}" if (ratio := row.ratio(name)) else "-" for name in ENGINES[1:]]
        shares = [f"{row.share_of_arithmetic(peaks):.0%}", f"{row.share_of_reading:.0%}"]
        below = "" if row.meets_line(peaks) else "below"
        table.add_row(row.case.kind, row.case.name, *times, *ratios, *shares, below)
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
            "over_onednn": row.ratio("dnnl"),
            "over_torch": row.ratio("torch"),
            "flops": row.case.flops,
            "bytes": row.case.nbytes,
            "share_of_arithmetic": row.share_of_arithmetic(peaks),
            "share_of_reading": row.share_of_reading,
            "meets_line": row.meets_line(peaks),
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
    console = Console(width=150)
    if torch is None:
        console.print("torch is not installed: its columns stay empty")
    peaks = measure_peaks(options.threads)
    chosen = [case for case in cases() if options.only in f"{case.kind} {case.name}"]
    rows = [measure(case, options.seconds, options.threads) for case in track(chosen, console=console, transient=True)]
    console.print(table_of(rows, peaks, options.threads))
    console.print(f"{sum(row.meets_line(peaks) for row in rows)} of {len(rows)} meet their lines")
    if options.json is not None:
        options.json.write_text(json.dumps(facts(rows, peaks, options.threads), indent=2) + "\n")


if __name__ == "__main__":
    main()
