"""Time to read a page: Kernelyard beside onnxruntime, in one process, their turns interleaved.

    python benchmarks/read_page.py [--rounds 30] [--json FILE]

Both engines read the same rendered page through the same steps. Reported per thread count: the 10th percentile and the
median of each engine, and the ratio Kernelyard / onnxruntime of the 10th percentiles (below 1: Kernelyard is faster).
Also per network, on the shapes of that page.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import onnxruntime
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "read_page"))

from ocr import Network, PageReader, model_paths
from page import LINES, draw_page

import kernelyard as ky

ENGINES = ("kernelyard", "onnxruntime")
NETWORKS = ("detector", "classifier", "recogniser")


class Timed:
    """A network whose calls are timed."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.seconds = 0.0

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        start = time.perf_counter()
        results = self.network(feeds)
        self.seconds += time.perf_counter() - start
        return results


def kernelyard_network(path: Path, threads: int) -> tuple[Network, Mapping[str, str]]:
    """A network compiled for oneDNN and native kernels."""
    exe = ky.compile(path, target="cpu", backends=["dnnl", "native-cpu"])
    exe.threads = threads
    return lambda feeds: [np.asarray(tensor) for tensor in exe.run(feeds).values()], exe.metadata


def onnxruntime_network(path: Path, threads: int) -> tuple[Network, Mapping[str, str]]:
    """A network in an onnxruntime session with its default optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: [
        np.asarray(array) for array in session.run(None, dict(feeds))
    ], session.get_modelmeta().custom_metadata_map


MAKERS = {"kernelyard": kernelyard_network, "onnxruntime": onnxruntime_network}


def make_reader(engine: str, threads: int) -> tuple[PageReader, list[Timed]]:
    """A page reader on one engine, and its networks for their times."""
    made = [MAKERS[engine](path, threads) for path in model_paths().values()]
    timed = [Timed(network) for network, _ in made]
    return PageReader(timed[0], timed[1], timed[2], made[2][1]["character"]), timed


def measure(threads: int, rounds: int, console: Console) -> dict[str, dict[str, list[float]]]:
    """Seconds per page and per network of each engine, one value per round."""
    page, expected = draw_page(), [text for text, _ in LINES]
    readers = {engine: make_reader(engine, threads) for engine in ENGINES}
    times = {engine: {what: [] for what in ("page", *NETWORKS)} for engine in ENGINES}
    for engine, (reader, _) in readers.items():  # warm up, and check that both read the page
        for _ in range(3):
            read = [line.text for line in reader.read(page)]
            if read != expected:
                raise SystemExit(f"{engine} reads {read}")
    for number in track(range(rounds), f"{threads} threads", console=console, transient=True):
        for engine in ENGINES if number % 2 else reversed(ENGINES):
            reader, timed = readers[engine]
            for network in timed:
                network.seconds = 0.0
            start = time.perf_counter()
            reader.read(page)
            times[engine]["page"].append(time.perf_counter() - start)
            for name, network in zip(NETWORKS, timed, strict=True):
                times[engine][name].append(network.seconds)
    return times


def summary(times: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Per row: p10 and median in milliseconds of both engines, and the ratio of the p10s."""
    rows: dict[str, dict[str, float]] = {}
    for what in ("page", *NETWORKS):
        row = {}
        for engine in ENGINES:
            row[f"{engine}_p10_ms"] = float(np.percentile(times[engine][what], 10)) * 1e3
            row[f"{engine}_median_ms"] = float(np.median(times[engine][what])) * 1e3
        row["ratio"] = row["kernelyard_p10_ms"] / row["onnxruntime_p10_ms"]
        rows[what] = row
    return rows


def main() -> None:
    """Measure with one and two threads, print a table, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    console = Console()
    table = Table("threads", "what", "kernelyard ms", "onnxruntime ms", "ratio", title="p10 (median) per page")
    results = {}
    for threads in options.threads:
        results[threads] = summary(measure(threads, options.rounds, console))
        for what, row in results[threads].items():
            cells = [f"{row[f'{engine}_p10_ms']:.2f} ({row[f'{engine}_median_ms']:.2f})" for engine in ENGINES]
            table.add_row(str(threads), what, *cells, f"{row['ratio']:.2f}")
    console.print(table)
    if options.json is not None:
        versions = {name: metadata.version(name) for name in ("kernelyard", "kernelyard-dnnl", "onnxruntime", "numpy")}
        facts = {"machine": platform.processor() or platform.machine(), "versions": versions, "results": results}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
