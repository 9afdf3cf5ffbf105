"""Quantized networks on CPUs, beside other engines on the same files and beside our own float32.

    python benchmarks/int8.py [NAME ...] [--schemes QDQ dynamic QOperator] [--threads 1] [--rounds 8] [--json FILE]

The files are made by onnxruntime's tools (recipes/quantized.py); NAME/SCHEME stands for files of your own in the
folder of --models: NAME.onnx, its inputs NAME.npz, and NAME_SCHEME.onnx with NAME_SCHEME.npz. Each engine runs in a
process of its own; they take turns in short bursts. Times are the 10th percentile of all calls: of one thread, the
processor's time, which does not count what others do on the cores. Columns: how many times as fast ours is as
onnxruntime, as OpenVINO, and as our own float32 of the same network (above 1: ours in 8 bits is faster); the share
of results at most one quantum from onnxruntime's without its optimisations, and from its optimised ones, a quantum
being a 255th of the results' range; seconds to compile over float32's.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from models import HERE, machine
from peers.compare import How, take_turns
from peers.worker import Worker
from recipes.quantized import CNNS, NETWORKS, SCHEMES, TRANSFORMERS

OURS, FLOAT = "kernelyard", "kernelyard float32"
PEERS = ("onnxruntime", "openvino")
QUANTA = 255


@dataclass(frozen=True)
class Row:
    """A network in one scheme. milliseconds: of each engine that ran; failures: of the others."""

    network: str
    scheme: str
    threads: int
    milliseconds: Mapping[str, float]
    failures: Mapping[str, str]
    within_a_quantum: tuple[float, float]
    compile_ratio: float

    def ratio(self, engine: str) -> float:
        """The time of an engine over ours; NaN where one of both did not run."""
        return self.milliseconds.get(engine, math.nan) / self.milliseconds.get(OURS, math.nan)

    def __str__(self) -> str:
        columns = "  ".join(f"{self.ratio(engine):11.2f}" for engine in (*PEERS, FLOAT))
        name = f"{self.network} {self.scheme}"
        line = f"{name:24}{self.milliseconds.get(OURS, math.nan):9.2f}  {columns}  "
        failed = "".join(f"\n    {engine}: {reason[:150]}" for engine, reason in self.failures.items())
        literal, optimised = (f"{100 * share:7.2f} %" for share in self.within_a_quantum)
        return f"{line}{literal} {optimised}  {self.compile_ratio:7.2f}{failed}"


def measure(network: str, scheme: str, threads: int, folder: Path, how: How) -> Row:
    """Run all engines on a file, and ours on that of float32, too."""
    models = {OURS: f"{network}_{scheme}", FLOAT: network} | dict.fromkeys(PEERS, f"{network}_{scheme}")
    workers: dict[str, Worker] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="kernelyard-int8-") as name:
        for engine, model in models.items():
            to = Path(name) / engine.replace(" ", "-")
            to.mkdir()
            try:
                path = folder / f"{model}.onnx"
                program = OURS if engine == FLOAT else engine
                workers[engine] = Worker.start(program, sys.executable, path, threads, to, how.patience)
                workers[engine].engine = engine
            except RuntimeError as error:
                failures[engine] = str(error)
        try:
            failures |= {row.engine: row.failure for row in take_turns(list(workers.values()), how)}
            measured = {
                engine: worker.processor_seconds if threads == 1 else worker.seconds
                for engine, worker in workers.items()
                if worker.seconds
            }
            times = {engine: 1e3 * sorted(seconds)[len(seconds) // 10] for engine, seconds in measured.items()}
            within = _within_a_quantum(workers, folder / f"{network}_{scheme}.onnx")
        finally:
            for worker in workers.values():
                worker.close()
    ready = [workers[engine].ready_seconds if engine in workers else math.nan for engine in (OURS, FLOAT)]
    return Row(network, scheme, threads, times, failures, within, ready[0] / ready[1])


def _within_a_quantum(workers: Mapping[str, Worker], path: Path) -> tuple[float, float]:
    """The shares beside what the model says operator by operator, and beside what onnxruntime makes of it."""
    if not {OURS, "onnxruntime"} <= workers.keys():
        return math.nan, math.nan
    ours, theirs = (list(dict(np.load(workers[engine].results)).values()) for engine in (OURS, "onnxruntime"))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    literal = [np.asarray(each) for each in session.run(None, dict(np.load(path.with_suffix(".npz"))))]
    return share_within(ours, literal), share_within(ours, theirs)


def share_within(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    shares = [
        float((np.abs(a.astype(np.float64) - b) <= 1.01 * float(np.ptp(b)) / QUANTA).mean())
        for a, b in zip(found, wanted, strict=True)
        if b.size
    ]
    return min(shares, default=math.nan)


def made(network: str, schemes: Sequence[str], folder: Path) -> None:
    """Write the files of a network that are not there. Raises: CalledProcessError."""
    missing = [scheme for scheme in schemes if not (folder / f"{network}_{scheme}.npz").exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "recipes.quantized", network, ",".join(missing), str(folder.absolute())]
        subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=True)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NETWORKS)}, or NAME/SCHEME in --models")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, help="QDQ; dynamic, too, for transformers")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--burst", type=float, default=0.15, help="seconds of each turn")
    parser.add_argument("--patience", type=float, default=300, help="seconds that an engine's answer may take")
    parser.add_argument("--models", type=Path, default=HERE / "build" / "int8")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    print(machine())
    print(
        f"{'':24}{'ms':>9}  {'onnxruntime':>11}  {'OpenVINO':>11}  {'our float32':>11}  "
        f"{'1 quantum':>9} {'optimised':>9}  compile"
    )
    for word in args.names or (*CNNS, *TRANSFORMERS):
        name, _, own = word.partition("/")
        schemes = (own,) if own else args.schemes or (("QDQ", "dynamic") if name in TRANSFORMERS else ("QDQ",))
        if not own:
            made(name, schemes, args.models)
        for threads in args.threads:
            for scheme in schemes:
                how = How(args.rounds, args.burst, 0, args.patience)
                rows.append(measure(name, scheme, threads, args.models.absolute(), how))
                print(rows[-1], f" {threads} threads" if threads > 1 else "", flush=True)
    for engine in (*PEERS, FLOAT):
        ratios = [row.ratio(engine) for row in rows if not math.isnan(row.ratio(engine))]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{engine}: geometric mean {mean:.2f}, least {min(ratios):.2f}, of {len(ratios)}")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
