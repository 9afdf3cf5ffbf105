"""Whole models on CPUs, beside other engines in the same run.

    python benchmarks/models.py [NAME ...] [--threads 1 2] [--rounds 10] [--engines NAME ...] [--python ENGINE=PATH ...]
                                [--results FOLDER] [--update]

Engines run in processes of their own, which take turns; each may have an interpreter of its own. The ratio is the time
of the best of onnxruntime, OpenVINO (float32) and torch.compile over ours: above 1, Kernelyard is faster. Also measured
is what it costs to start, beside onnxruntime. Writes cpu.json, cpu.md and cpu.png into the folder of results, after
each model; with --update what is there already stays, but for the rows that are measured again: a table can be made in
pieces, and engines that take long (tvm) can be added. Every ratio is of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from peers.compare import Comparison, How, compare
from peers.engines import ENGINES
from peers.page import chart, markdown
from peers.start import OURS
from recipes.from_packages import NAMES as PACKAGED
from rich.console import Console
from rich.progress import track

HERE = Path(__file__).parent
# In the order of the table; those in PyTorch are written by its interpreter.
IN_TORCH = (
    *("add4", "mlp_b1", "mlp_b32", "mlp_b1024", "squeezenet11", "mobilenetv2", "resnet18", "resnet50"),
    *("minilm_s128", "bert_base_s128", "gpt2_step_kv256", "llama_block_s64"),
)
MODELS = (*IN_TORCH, *PACKAGED)
PEERS = ("onnxruntime", "openvino", "torch.compile")


def model_file(name: str, folder: Path, torch_python: str) -> Path:
    """The model, written if need be. Raises: RuntimeError with what was said."""
    path = folder / f"{name}.onnx"
    if not path.exists() or not path.with_suffix(".npz").exists():
        folder.mkdir(parents=True, exist_ok=True)
        module, python = ("in_torch", torch_python) if name in IN_TORCH else ("from_packages", sys.executable)
        words = [python, "-m", f"recipes.{module}", name, str(folder.absolute())]
        done = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-400:])
    return path


def machine() -> str:
    """The machine and the date, in a line."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return f"{model}, {os.cpu_count()} processors, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"


class Table:
    """The comparisons of all models, kept in a folder as JSON data, a page and a chart."""

    def __init__(self, folder: Path, update: bool) -> None:
        self.folder = folder
        self._file = folder / "cpu.json"
        self._comparisons: dict[tuple[str, int], Comparison] = {}
        if update and self._file.exists():
            known = map(Comparison.from_json, json.loads(self._file.read_text(encoding="utf-8"))["models"])
            self._comparisons = {(each.model, each.threads): each for each in known}

    def add(self, found: Comparison) -> None:
        """Take a comparison in, and write everything."""
        key = found.model, found.threads
        known = self._comparisons.get(key)
        self._comparisons[key] = found if known is None else known.updated(found)
        comparisons = sorted(self._comparisons.values(), key=lambda each: (_place(each.model), each.threads))
        versions = {row.engine: row.version for each in comparisons for row in each.rows if row.version}
        line = f"{machine()}; " + ", ".join(f"{engine} {version}" for engine, version in versions.items())
        facts = {"machine": line, "versions": versions, "models": [each.to_json() for each in comparisons]}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        text = markdown(comparisons, PEERS, line)
        (self.folder / "cpu.md").write_text(text, encoding="utf-8")
        chart(comparisons, PEERS, self.folder / "cpu.png")


def _place(model: str) -> tuple[int, str]:
    """Where a model stands in the table."""
    return MODELS.index(model) if model in MODELS else len(MODELS), model


def measure(args: argparse.Namespace, console: Console) -> None:
    """All models with each number of threads."""
    given = dict(text.split("=", 1) for text in args.python)
    pythons = {
        engine: given.get(engine, given.get(re.split("[. ]", engine)[0], sys.executable)) for engine in args.engines
    }
    table = Table(args.results, args.update)
    how = How(args.rounds, args.burst, args.starts, args.patience)
    for name in track(args.names or MODELS, "models", console=console, disable=not console.is_terminal):
        try:
            path = model_file(name, args.models, given.get("torch", sys.executable))
        except (RuntimeError, FileNotFoundError) as error:
            console.print(f"{name}: not made: {error}", markup=False)
            continue
        for threads in args.threads:
            found = compare(path.absolute(), pythons, threads, how)
            table.add(found)
            told = [f"{row.engine} {row.failure[:80] or f'{row.p10_ms:.4g} ms'}" for row in found.rows]
            line = f"{name}, {threads} threads: {found.ratio(PEERS) or float('nan'):.2f} ({', '.join(told)})"
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--burst", type=float, default=0.15, help="seconds of each turn")
    parser.add_argument("--starts", type=int, default=3, help="processes that are started to see what that costs")
    parser.add_argument("--patience", type=float, default=300, help="seconds that an engine's answer may take")
    parser.add_argument("--engines", nargs="+", default=[OURS, *PEERS], choices=ENGINES)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--models", type=Path, default=HERE / "build" / "models")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--update", action="store_true", help="keep what the results have of other models and engines")
    args = parser.parse_args()
    measure(args, Console(stderr=True))
    if (args.results / "cpu.md").exists():
        print((args.results / "cpu.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
