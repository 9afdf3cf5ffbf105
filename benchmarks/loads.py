"""Whole models beside other work: how engines share processors with busy processes.

    python benchmarks/loads.py [NAME ...] [--threads 1 2 4] [--conditions idle "8 processes" ...] [--rounds 5]
                               [--seconds 0.4] [--python ENGINE=PATH ...] [--results FOLDER]

n is the number of processors. While a condition holds, engines take turns, each with the same model in a process of its
own, or in eight processes that run for the same seconds; then the calls of all eight are counted. A limit (a set of one
processor, a CPU quota) holds for all of them; a quota needs a control group, and is left out where this machine lets
none be made. The ratio is the time of the best of onnxruntime and OpenVINO over ours in the same condition: above 1,
Kernelyard is faster. Writes loads.json and loads.png into the folder of results; `performance_page.py` puts them on
docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from models import HERE, machine, model_file
from peers.limits import cpu_quota, one_processor
from peers.page import BEHIND, COLOURS, LINE, geometric_mean
from peers.start import OURS, REFERENCE
from peers.worker import Worker
from rich.console import Console

ENGINES = (OURS, REFERENCE, "openvino")
MODELS = (
    *("mlp_b32", "squeezenet11", "mobilenetv2", "resnet18", "minilm_s128"),
    *("gpt2_step_kv256", "ppocr_det", "ppocr_rec", "basic_pitch", "magika"),
)
PROCESSORS = len(os.sched_getaffinity(0))
QUOTA = 1.5  # processors
_BUSY = "while True: pass"


class Row(NamedTuple):
    """The calls of an engine in a condition: the median, the mean and the 99th percentile, in milliseconds."""

    model: str
    condition: str
    threads: int
    engine: str
    median_ms: float
    mean_ms: float
    p99_ms: float


class Case(NamedTuple):
    """A model that engines run with a number of threads. pythons: the interpreter of each engine."""

    model: Path
    pythons: Mapping[str, str]
    threads: int
    folder: Path


def busy(count: int) -> list[subprocess.Popen[Any]]:
    """Start so many processes that do nothing but take processor time."""
    return [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]


def onnxruntime(case: Case) -> list[subprocess.Popen[Any]]:
    """Start a process of onnxruntime that runs the same model without a pause."""
    worker = Worker.start(REFERENCE, case.pythons[REFERENCE], case.model, case.threads, case.folder)
    worker.begin(math.inf)
    return [worker.process]


class Condition(NamedTuple):
    """Load beside the engines, how many processes of an engine run at a time, and a limit for all of them."""

    beside: Callable[[Case], list[subprocess.Popen[Any]]] = lambda case: []
    processes: int = 1
    limit: Callable[[], AbstractContextManager[None]] = nullcontext

    def is_possible(self) -> bool:
        """Return whether this machine lets the limit be set."""
        try:
            with self.limit():
                return True
        except OSError:
            return False


CONDITIONS: Mapping[str, Condition] = {
    "idle": Condition(),
    "n busy loops": Condition(lambda case: busy(PROCESSORS)),
    "2n busy loops": Condition(lambda case: busy(2 * PROCESSORS)),
    "onnxruntime beside": Condition(onnxruntime),
    "8 processes": Condition(processes=8),
    "one processor": Condition(limit=one_processor),
    f"quota of {QUOTA:g}": Condition(limit=partial(cpu_quota, QUOTA)),
}


@contextmanager
def beside(case: Case, condition: str) -> Iterator[None]:
    """Start the load of a condition, and end it."""
    started = CONDITIONS[condition].beside(case)
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def measure(case: Case, conditions: Sequence[str], rounds: int, seconds: float) -> Iterator[Row]:
    """Yield the rows of a case. A turn lasts `seconds`, or a call where that is longer."""
    for limit, names in groupby(conditions, key=lambda name: CONDITIONS[name].limit):
        with limit(), Engines(case) as engines:  # a limit comes first, as engines count processors when they start
            for condition in names:
                yield from _measure_condition(engines, case, condition, rounds, seconds)


class Engines:
    """The processes of each engine, which are started when they are first needed and wait between their turns."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._workers: dict[str, list[Worker]] = {engine: [] for engine in case.pythons}

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in (worker for group in self._workers.values() for worker in group):
            worker.close()

    def start(self, processes: int) -> None:
        """Have so many processes of each engine."""
        model, pythons, threads, folder = self._case
        for engine, group in self._workers.items():
            group += [
                Worker.start(engine, pythons[engine], model, threads, folder) for _ in range(len(group), processes)
            ]

    def turn(self, engine: str, processes: int, seconds: float) -> list[float]:
        """Return the seconds of each call of so many processes, all of which run for the same time."""
        workers = self._workers[engine][:processes]
        for worker in workers:
            worker.run(1)
        for worker in workers:
            worker.begin(seconds)
        calls = [call for worker in workers for call in worker.finish()]
        for worker in workers:
            worker.settle()
        return calls


def _measure_condition(engines: Engines, case: Case, condition: str, rounds: int, seconds: float) -> Iterator[Row]:
    """Yield a row for each engine; engines take turns."""
    processes = CONDITIONS[condition].processes
    engines.start(processes)
    calls: dict[str, list[float]] = {engine: [] for engine in case.pythons}
    with beside(case, condition):
        for engine in [engine for _ in range(rounds) for engine in calls]:
            calls[engine] += engines.turn(engine, processes, seconds)
    for engine, found in calls.items():
        p99 = sorted(found)[min(len(found) - 1, int(0.99 * len(found)))]
        figures = (1e3 * each for each in (statistics.median(found), statistics.fmean(found), p99))
        yield Row(case.model.stem, condition, case.threads, engine, *figures)


def ratios(rows: Sequence[Row], condition: str, threads: int, figure: str = "median_ms") -> dict[str, float]:
    """Return the time of the best other engine over ours, by model."""
    times = {
        (row.model, row.engine): getattr(row, figure)
        for row in rows
        if (row.condition, row.threads) == (condition, threads)
    }
    models = dict.fromkeys(model for model, engine in times if engine == OURS)
    return {
        model: min(time for (name, engine), time in times.items() if name == model and engine != OURS)
        / times[model, OURS]
        for model in models
    }


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table: for each condition and number of threads, geometric means and the least ratio."""
    yield "| condition | threads | median: best of the others / ours | least | mean | least | 99th percentile | least |"
    yield f"|---|{'---:|' * 7}"
    for condition, threads in dict.fromkeys((row.condition, row.threads) for row in rows):
        cells: list[str] = []
        for figure in ("median_ms", "mean_ms", "p99_ms"):
            found = ratios(rows, condition, threads, figure)
            worst = min(found, key=lambda model: found[model])
            cells += [f"{geometric_mean(list(found.values())):.2f}", f"{found[worst]:.2f} {worst}"]
        yield f"| {condition} | {threads} | {' | '.join(cells)} |"


def chart(rows: Sequence[Row], path: Path) -> None:
    """Draw geometric means as bars, one colour for each number of threads; a dot is a model.

    From above: those of medians, of means (calls per second), and of 99th percentiles.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    count = len(dict.fromkeys(row.condition for row in rows))
    figure, panels = plt.subplots(3, figsize=(3 + 1.2 * count, 9), sharex=True, constrained_layout=True)
    _panel(panels[0], rows, "median_ms", "Median call")
    _panel(panels[1], rows, "mean_ms", "Mean call: the calls that a process makes in a time")
    _panel(panels[2], rows, "p99_ms", "99th percentile")
    panels[0].legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    title = "Best of onnxruntime and OpenVINO / Kernelyard (above 1: Kernelyard is faster; a dot is a model)"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _panel(axes: Any, rows: Sequence[Row], figure: str, title: str) -> None:
    """Draw the ratios of one figure of each row on matplotlib's axes."""
    conditions = list(dict.fromkeys(row.condition for row in rows))
    threads = sorted({row.threads for row in rows})
    width = 0.8 / len(threads)
    for number, count in enumerate(threads):
        found = {
            place + (number + 0.5) * width - 0.4: list(ratios(rows, condition, count, figure).values())
            for place, condition in enumerate(conditions)
        }
        found = {place: values for place, values in found.items() if values}
        means = [geometric_mean(values) for values in found.values()]
        label = f"{count} thread{'s' if count > 1 else ''}"
        bars = axes.bar(
            list(found),
            [mean - 1 for mean in means],
            0.9 * width,
            bottom=1,
            color=COLOURS[number],
            label=label,
            zorder=2,
        )
        texts = [f"{mean:.2f}" for mean in means]
        axes.bar_label(bars, texts, padding=1, fontsize=7, color=LINE, zorder=4, bbox=BEHIND)
        for place, values in found.items():
            axes.scatter([place] * len(values), values, s=5, color=LINE, alpha=0.5, zorder=3)
    axes.axhline(1, color=LINE, linewidth=1.2, zorder=3)
    axes.set_yscale("log", base=2)
    axes.set_yticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    axes.set_xticks(range(len(conditions)), conditions, fontsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8, zorder=0)
    axes.tick_params(axis="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=9, loc="left")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, PROCESSORS, 2 * PROCESSORS])
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--models", type=Path, default=HERE / "build" / "models")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    given = dict(text.split("=", 1) for text in args.python)
    pythons = {engine: given.get(engine, sys.executable) for engine in args.engines}
    console = Console(stderr=True)
    conditions = [name for name in args.conditions if CONDITIONS[name].is_possible()]
    for name in set(args.conditions).difference(conditions):
        console.print(f"{name}: this machine lets no such limit be set", highlight=False)
    rows: list[Row] = []
    for name in args.names:
        path = model_file(name, args.models, given.get("torch", sys.executable)).absolute()
        for threads in args.threads:
            with tempfile.TemporaryDirectory(prefix="kernelyard-bench-") as folder:
                case = Case(path, pythons, threads, Path(folder))
                rows += measure(case, conditions, args.rounds, args.seconds)
            line = ", ".join(f"{c} {ratios(rows, c, threads).get(name, math.nan):.2f}" for c in conditions)
            console.print(f"{name}, {threads} threads: {line}", highlight=False, soft_wrap=True)
        args.results.mkdir(parents=True, exist_ok=True)
        facts = {"machine": machine(), "rows": [row._asdict() for row in rows]}
        (args.results / "loads.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        chart(rows, args.results / "loads.png")
    print("\n".join(markdown(rows)))


if __name__ == "__main__":
    main()
