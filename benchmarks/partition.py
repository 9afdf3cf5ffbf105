"""How long placement takes: modules of 1,000 to 50,000 ops, offered to every backend that is installed.

    python benchmarks/partition.py [--plot docs/images/partition.png] [--ops 1000 50000]

The time is the processor's: placement runs on one thread, and other programs do not count. With the plot (it needs
matplotlib) comes what is asked of it: 10,000 ops in less than 5 seconds, and time in proportion to the ops.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.driver.session.choose_backends import choose_backends
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.target import Target

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
LIMIT_OPS, LIMIT_SECONDS = 10_000, 5.0
WIDTH = 16


@dataclass(frozen=True)
class Measured:
    """partition and report: seconds. offloaded: the share of ops that libraries took."""

    ops: int
    partition: float
    report: float
    offloaded: float


def network(ops: int) -> IRModule:
    """Blocks of two layers, a normalisation, an op that no library has, and a residual; each with its own weights."""
    b = FunctionBuilder()
    random = np.random.default_rng(0)
    x = b.input("x", (8, WIDTH))
    for i in range(ops // 9):
        x = _block(b, x, random, f"node 'block_{i}' (Block)")
    return IRModule({"main": b.function(x)})


def _block(b: FunctionBuilder, x: Var, random: np.random.Generator, origin: str) -> Var:
    def weight(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    inner = b.op("matmul", x, weight(WIDTH, WIDTH), origin=origin)
    inner = b.op("nn.relu", b.op("add", inner, weight(WIDTH)), origin=origin)
    outer = b.op("nn.softmax", b.op("matmul", inner, weight(WIDTH, WIDTH), origin=origin), axis=1, origin=origin)
    mixed = b.op("floor", b.op("add", inner, outer), origin=origin)
    return b.op("add", b.op("cumsum", mixed, axis=1, origin=origin), x, origin=origin)


def measure(ops: int) -> Measured:
    """Place one module for the CPU and report on it."""
    module, recorder = network(ops), Recorder()
    backends = choose_backends(get_manager(), Target("cpu"), "auto")
    gc.collect()
    start = time.process_time()
    placed = partition(module, backends, PlacementSettings(recorder=recorder))
    middle = time.process_time()
    report = build_report(placed, recorder)
    end = time.process_time()
    took = sum(1 for node in report.nodes if node.pattern)
    return Measured(len(report.nodes), middle - start, end - middle, took / len(report.nodes))


def plot(rows: list[Measured], path: Path) -> None:
    """Seconds over ops, with the limit and the line through the first row's time per op."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    ops = [row.ops for row in rows]
    axes.plot(ops, [row.partition + row.report for row in rows], "o-", color="#2f6fde", label="partition and report")
    axes.plot(ops, [row.report for row in rows], "o-", color="#8a93a3", label="report alone")
    each = (rows[0].partition + rows[0].report) / rows[0].ops
    axes.plot(ops, [each * count for count in ops], "--", color="#d9822b", label=f"{1e3 * each:.2f} ms per op")
    axes.plot(
        [LIMIT_OPS], [LIMIT_SECONDS], "v", color="#c0392b", label=f"limit: {LIMIT_OPS:,} ops in {LIMIT_SECONDS:g} s"
    )
    axes.set(xlabel="ops in the module", ylabel="seconds of processor time", xlim=0, ylim=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, print a table, and draw it."""
    parser = argparse.ArgumentParser(description="Time placement over modules of growing size.")
    parser.add_argument("--plot", type=Path, help="write the plot to this PNG file")
    parser.add_argument("--ops", type=int, nargs="+", default=SIZES, help="sizes of the modules")
    given = parser.parse_args()
    measure(500)  # what is imported and cached at the first use
    rows: list[Measured] = []
    print(f"{'ops':>7}  {'partition s':>11}  {'report s':>8}  {'ms/op':>6}  offloaded")
    for size in given.ops:
        row = measure(size)
        rows.append(row)
        each = 1e3 * (row.partition + row.report) / row.ops
        print(
            f"{row.ops:>7}  {row.partition:>11.2f}  {row.report:>8.2f}  {each:>6.2f}  {row.offloaded:.0%}", flush=True
        )
    if given.plot:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
