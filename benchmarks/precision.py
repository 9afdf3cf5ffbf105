"""Measure the precisions: errors of whole models against float32, beside their speed.

    python benchmarks/precision.py [NAME ...] [--precisions bf16 ...] [--threads 1 2] [--page docs/precision.md]

Programs of all precisions of a model live in one process and take turns. Errors are relative to float32 of ours: the
largest difference over the largest magnitude, of the worst output. Writes precision.json and precision.md into the
folder of results, where rows of models that are not measured this time stay, and the table into the page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from models import HERE, MODELS, machine, model_file

import kernelyard as ky
from kernelyard.driver.session.precision import DEFAULT, PRECISIONS

TABLE = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
LEAST_CLASSES = 2
Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Row:
    """A model in one precision. milliseconds: 10th percentile; speedup: of float32's over it, in the same run.

    top_class: whether the largest score stays where it was, for models with one row of scores. weights: of float32's
    bytes.
    """

    model: str
    precision: str
    threads: int
    milliseconds: float
    speedup: float
    error: float
    top_class: bool | None
    weights: float


def measure(path: Path, precisions: Sequence[str], threads: int, seconds: float) -> list[Row]:
    """The rows of a model."""
    feeds = dict(np.load(path.with_suffix(".npz")))
    programs = {name: ky.compile(path, precision=name) for name in (DEFAULT, *precisions)}
    for program in programs.values():
        program.threads = threads
    results = {name: [each.numpy() for each in program.run(feeds).values()] for name, program in programs.items()}
    times = _take_turns(programs, feeds, seconds)
    return [
        Row(
            path.stem,
            name,
            threads,
            1e3 * times[name],
            times[DEFAULT] / times[name],
            max(map(_error, results[name], results[DEFAULT])),
            _same_top_class(results[name], results[DEFAULT]),
            _weights(programs[name]) / max(_weights(programs[DEFAULT]), 1),
        )
        for name in precisions
    ]


def _take_turns(programs: Mapping[str, ky.Executable], feeds: Feeds, seconds: float) -> dict[str, float]:
    """The 10th percentile of the seconds of a call."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, program in programs.items():
            burst = time.perf_counter() + 0.1
            while time.perf_counter() < burst:
                start = time.perf_counter()
                program.run(feeds)
                found[name].append(time.perf_counter() - start)
    return {name: float(np.percentile(each, 10)) for name, each in found.items()}


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    if not wanted.size:
        return 0.0
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.abs(found - wanted).max() / (np.abs(wanted).max() + 1e-30))


def _same_top_class(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool | None:
    if len(wanted) != 1 or wanted[0].size != max(wanted[0].shape, default=0) or wanted[0].size < LEAST_CLASSES:
        return None
    return bool(found[0].argmax() == wanted[0].argmax())


def _weights(program: ky.Executable) -> int:
    return sum(array.nbytes for array in program.constants.values())


def markdown(rows: Sequence[Row], head: str) -> str:
    """The table: a line for each model and precision."""
    counts = sorted({row.threads for row in rows})
    speeds = "".join(f" faster, {count} thread{'s' if count > 1 else ''} |" for count in counts)
    lines = [head, "", f"| model | precision | error | top class | weights |{speeds}"]
    lines.append(f"|---|---|---:|---|---:|{'---:|' * len(counts)}")
    by_threads = {(row.model, row.precision, row.threads): row for row in rows}
    for model, precision in dict.fromkeys((row.model, row.precision) for row in rows):
        own = {threads: by_threads.get((model, precision, threads)) for threads in counts}
        row = next(each for each in own.values() if each is not None)
        top = {None: "", True: "same", False: "another"}[row.top_class]
        speed = [f"{each.speedup:.2f}x" if each is not None else "-" for each in own.values()]
        cells = [model, precision, f"{row.error:.1e}", top, f"{100 * row.weights:.0f} %", *speed]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """See the module's text."""
    chosen = [name for name in PRECISIONS if name != DEFAULT]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--precisions", nargs="+", default=chosen, choices=chosen)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each model and number of threads")
    parser.add_argument("--models", type=Path, default=HERE / "build" / "models")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, help="a page whose table is to be written anew")
    parser.add_argument("--torch-python", default=sys.executable, help="the interpreter that writes models of PyTorch")
    args = parser.parse_args()
    known = args.results / "precision.json"
    saved = json.loads(known.read_text(encoding="utf-8"))["rows"] if known.exists() else []
    rows = {(row["model"], row["precision"], row["threads"]): Row(**row) for row in saved}
    for name in args.names or MODELS:
        path = model_file(name, args.models, args.torch_python)
        for threads in args.threads:
            for row in measure(path, args.precisions, threads, args.seconds):
                rows[row.model, row.precision, row.threads] = row
                print(row, file=sys.stderr)
    names, order = list(MODELS), list(PRECISIONS)
    table = sorted(rows.values(), key=lambda row: (names.index(row.model), order.index(row.precision), row.threads))
    args.results.mkdir(parents=True, exist_ok=True)
    head = f"{machine()}; Kernelyard {ky.__version__}."
    known.write_text(json.dumps({"machine": head, "rows": [asdict(row) for row in table]}, indent=1) + "\n", "utf-8")
    text = markdown(table, head)
    (args.results / "precision.md").write_text(text + "\n", encoding="utf-8")
    if args.page is not None:
        page = args.page.read_text(encoding="utf-8")
        args.page.write_text(TABLE.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
