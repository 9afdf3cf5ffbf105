"""Whole models, or kernels alone, on a GPU, beside PyTorch and onnxruntime in the same run.

    python benchmarks/gpu.py [NAME ...] [--engines kernelyard eager ...] [--minutes 9] [--results FOLDER]
    python benchmarks/gpu.py --kernels [NAME ...]          # operators: ours generated, from libraries, and PyTorch's
    python benchmarks/gpu.py --device emulator --quick     # the same way through without a GPU: small, and slow

Engines take turns in one process. A turn's time is that between two CUDA events around its calls: of models on
PyTorch's stream, which waits for each result; of kernels on the engine's own, over operands that do not fit the
second-level cache. The ratio is the time of torch.compile at its fastest (of kernels: PyTorch's) over ours at its
fastest: above 1, Kernelyard is faster.

Writes gpu.json and gpu.md (gpu-kernels for kernels) into the folder of results after each model, with device, driver
and library versions; rows that lie there of the same machine and versions stay. Numbers of the emulator mean nothing,
and are written only where a folder is named.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from on_gpu.bench import ModelBench
from on_gpu.budget import Budget
from on_gpu.engines import ENGINES, Stage, engines_here
from on_gpu.kernel_bench import EAGER, KERNEL_ENGINES, KernelBench
from on_gpu.kernel_cases import KERNELS, QUICK_KERNELS
from on_gpu.models import MODELS, QUICK
from on_gpu.results import COMPILED_BY_TORCH, OURS, Column, Results, Row, rows_or_failures
from on_gpu.turns import Turns
from rich.console import Console

HERE = Path(__file__).parent
DISTRIBUTIONS = ("kernelyard", "torch", "onnxruntime-gpu", "cuda-bindings", "nvidia-cublas", "nvidia-cublas-cu12")
DISTRIBUTIONS += ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-frontend", "nvidia-cutlass")
OF_MODELS = Column("torch.compile / ours", COMPILED_BY_TORCH, OURS)
OF_KERNELS = Column("PyTorch / ours", (EAGER,), OURS)
PRECISION = "- float32: ours computes in float32; PyTorch computes convolutions in TF32, unless told otherwise"


def machine_line(stage: Stage) -> str:
    """Device, driver and libraries."""
    versions = []
    for name in DISTRIBUTIONS:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    device = "the emulator" if stage.is_emulator else f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return f"{device}; {', '.join(versions)}; {time.strftime('%Y-%m-%d')}"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}; with --kernels {', '.join(KERNELS)}")
    parser.add_argument("--kernels", action="store_true", help="operators instead of models")
    parser.add_argument(
        "--engines", nargs="+", help=f"of {', '.join(ENGINES)}; with --kernels {', '.join(KERNEL_ENGINES)}"
    )
    parser.add_argument("--minutes", type=float, help="begin no model for which the time would not be enough")
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small networks, few rounds")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each engine")
    parser.add_argument("--burst", type=float, default=0.2, help="seconds of a turn")
    parser.add_argument("--results", type=Path, help="default: $OUT, or benchmarks/results")
    args = parser.parse_args(given)
    small, large = (QUICK_KERNELS, KERNELS) if args.kernels else (QUICK, MODELS)
    args.table = small if args.quick else large
    engines = KERNEL_ENGINES if args.kernels else ENGINES
    for kind, names, known in (("model", args.names, args.table), ("engine", args.engines or (), engines)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no {kind} {', '.join(unknown)}; there are {', '.join(known)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; --device emulator --quick goes the same way without one")
    if args.results is None and args.device == "cuda":
        args.results = Path(os.environ.get("OUT") or HERE / "results")
    return args


def measurement(args: argparse.Namespace, stage: Stage) -> Callable[[str], list[Row]]:
    """Return the function that measures the rows of a model, or of a case of kernels."""
    turns = Turns(stage.is_emulator, 2 if args.quick else args.rounds, 0.01 if args.quick else args.burst)
    table: Mapping[str, Any] = args.table
    if args.kernels:
        kernels = KernelBench(stage, turns, args.engines or KERNEL_ENGINES)
        return lambda name: rows_or_failures(name, kernels.engines, lambda: kernels.measure(name, table[name]()))
    models = ModelBench(stage, turns, args.engines or engines_here(stage))
    return lambda name: rows_or_failures(name, models.engines, lambda: models.measure(name, table[name]))


def main() -> int:
    """See the module's text. Return 1 where no engine could be measured on some model."""
    args = arguments()
    console = Console(stderr=True)
    stage = Stage(args.device == "emulator")
    measure, file = measurement(args, stage), "gpu-kernels" if args.kernels else "gpu"
    results = Results(machine_line(stage), OF_KERNELS if args.kernels else OF_MODELS, (PRECISION,))
    if args.results:
        results.take_earlier(args.results / f"{file}.json")
    budget, status = Budget(args.minutes), 0
    for name in args.names or args.table:
        if not budget.fits():
            results.left_out.append(name)
            continue
        rows = budget.run(lambda name=name: measure(name))
        results.add(rows)
        status = max(status, int(bool(rows) and all(row.failure for row in rows)))
        if args.results:
            results.write(args.results, file)
        for row in rows:
            console.print(str(row), highlight=False, soft_wrap=True, markup=False)
    if args.results and results.left_out:
        results.write(args.results, file)
    print(results.markdown())
    return status


if __name__ == "__main__":
    sys.exit(main())
