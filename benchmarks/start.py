"""Measure the start of a model: time to the first result, time to get ready, memory; ours beside onnxruntime's.

    python benchmarks/start.py model.onnx [...] [--times 5] [--threads 1] [--json out.json]

Beside each model lie its feeds, as NAME.npz (benchmarks/models.py writes such pairs). Ours starts from an artifact,
which is made beforehand, and from the model. Each start is a process of its own, in turns; the least of each number
counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from peers.start import OURS, REFERENCE, measure_starts


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, object] = {}
    print(f"{'':20} cold: artifact / onnxruntime   ready: ONNX / limit   peak MiB: artifact, ONNX / onnxruntime")
    for model in args.models:
        with tempfile.TemporaryDirectory(prefix="kernelyard-start-") as folder:
            pythons = {str(engine): sys.executable for engine in (OURS, REFERENCE)}
            starts = measure_starts(model.absolute(), pythons, args.threads, args.times, Path(folder))
        artifact, ours, reference = starts.artifact, starts.model, starts.reference
        for failure in filter(None, (artifact.failure, ours.failure, reference.failure)):
            print(f"{model.stem}: {failure}")
        print(
            f"{model.stem:20} {artifact.cold_seconds:.3f} / {reference.cold_seconds:.3f} s = {starts.cold_ratio:.2f}   "
            f"{ours.ready_seconds:.3f} / {starts.ready_limit:.3f} s   "
            f"{artifact.peak_mib:.0f}, {ours.peak_mib:.0f} / {reference.peak_mib:.0f}"
            f" = {starts.peak_ratio(artifact):.2f}, {starts.peak_ratio(ours):.2f}",
            flush=True,
        )
        found[model.stem] = asdict(starts)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
