"""Whole models and single products on a GPU, beside PyTorch and onnxruntime in the same run.

    python benchmarks/gpu.py [NAME ...] [--rounds 10] [--results FOLDER]
    python benchmarks/gpu.py --device emulator --quick     # the same way through without a GPU: small, and slow

Engines take turns in one process. A turn's time is that between two CUDA events around its calls, on PyTorch's stream,
which waits for each result. The ratio is torch.compile's time (mode "max-autotune") over ours: above 1, Kernelyard is
faster. Writes gpu.json and gpu.md into the folder of results, with device, driver and library versions.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch
from on_gpu.bench import Bench
from on_gpu.models import MODELS, QUICK
from on_gpu.results import Row, markdown
from rich.console import Console

HERE = Path(__file__).parent
DISTRIBUTIONS = ("kernelyard", "torch", "onnxruntime-gpu", "cuda-bindings", "nvidia-cublas", "nvidia-cublas-cu12")


def machine_line(is_emulator: bool) -> str:
    """Device, driver and libraries."""
    versions = []
    for name in DISTRIBUTIONS:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    device = "the emulator" if is_emulator else f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return f"{device}; {', '.join(versions)}; {time.strftime('%Y-%m-%d')}"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small networks, few rounds")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    console = Console(stderr=True)
    models = QUICK if args.quick else MODELS
    bench = Bench(args.device, 2 if args.quick else args.rounds, 0.01 if args.quick else 0.2)
    rows: list[Row] = []
    for name in args.names or models:
        make, dtype = models[name]
        rows += bench.measure(name, make, dtype)
        for row in rows:
            if row.model == name:
                told = row.failure or f"{row.milliseconds:.4g} ms, error {row.error:.0e}"
                console.print(f"{name}, {row.engine}: {told}", highlight=False, soft_wrap=True)
    line = machine_line(bench.is_emulator)
    text = markdown(rows, line)
    if not bench.is_emulator:  # its times mean nothing
        args.results.mkdir(parents=True, exist_ok=True)
        facts = {"machine": line, "rows": [asdict(row) for row in rows]}
        (args.results / "gpu.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        (args.results / "gpu.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
