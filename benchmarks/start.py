"""Measure the start of a model: time to the first result, time to get ready, memory; beside onnxruntime and OpenVINO.

    python benchmarks/start.py model.onnx [...] [--times 5] [--threads 1] [--json out.json]
                               [--others openvino ...] [--python ENGINE=PATH ...]

Beside each model lie its feeds, as NAME.npz (benchmarks/models.py writes such pairs). Ours starts from an artifact,
which is made beforehand, and from the model. Each start is a process of its own, in turns; the least of each number
counts. Peaks are of resident memory, with the pages of files, until after the first result.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from peers.start import OURS, REFERENCE, measure_engine, measure_starts


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--others", nargs="*", default=["openvino"])
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    args = parser.parse_args()
    given = dict(text.split("=", 1) for text in args.python)
    pythons = {str(engine): given.get(engine, sys.executable) for engine in (OURS, REFERENCE, *args.others)}
    found: dict[str, object] = {}
    print(f"{'':20} cold: artifact / onnxruntime   ready: ONNX / limit   peak MiB: artifact, ONNX / onnxruntime")
    for model in args.models:
        with tempfile.TemporaryDirectory(prefix="kernelyard-start-") as folder:
            starts = measure_starts(model.absolute(), pythons, args.threads, args.times, Path(folder))
            others = {
                engine: measure_engine(
                    engine, pythons[engine], model.absolute(), args.threads, args.times, Path(folder)
                )
                for engine in args.others
            }
        artifact, ours, reference = starts.artifact, starts.model, starts.reference
        for failure in filter(None, (each.failure for each in (artifact, ours, reference, *others.values()))):
            print(f"{model.stem}: {failure}")
        print(
            f"{model.stem:20} {artifact.cold_seconds:.3f} / {reference.cold_seconds:.3f} s = {starts.cold_ratio:.2f}   "
            f"{ours.ready_seconds:.3f} / {starts.ready_limit:.3f} s   "
            f"{artifact.peak_mib:.0f}, {ours.peak_mib:.0f} / {reference.peak_mib:.0f}"
            f" = {starts.peak_ratio(artifact):.2f}, {starts.peak_ratio(ours):.2f}",
            *(f"  {engine} {each.cold_seconds:.3f} s, {each.peak_mib:.0f} MiB" for engine, each in others.items()),
            flush=True,
        )
        found[model.stem] = asdict(starts) | {"others": {engine: asdict(each) for engine, each in others.items()}}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
