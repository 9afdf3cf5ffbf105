"""Whole models beside other work: how engines share processors with busy processes.

    python benchmarks/loads.py [NAME ...] [--threads 1 2 4] [--conditions idle "8 processes" ...] [--rounds 5]
                               [--seconds 0.4] [--python ENGINE=PATH ...] [--results FOLDER]

n is the number of processors. While a condition holds, engines take turns, each with the same model in a process of its
own. A limit (a set of one processor, a CPU quota) holds for all of them; a quota needs a control group, and is left out
where this machine lets none be made. The ratio is the time of the best of onnxruntime and OpenVINO over ours in the
same condition: above 1, Kernelyard is faster. Writes loads.json and loads.png into the folder of results;
`performance_page.py` puts them on docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
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
_FOREVER = 10**9


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
    """A model that engines run with a number of threads."""

    model: Path
    threads: int
    pythons: Mapping[str, str]
    folder: Path


def busy(count: int) -> list[subprocess.Popen[Any]]:
    """Start so many processes that do nothing but take processor time."""
    return [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]


def beside(case: Case, engine: str, count: int) -> list[subprocess.Popen[Any]]:
    """Start so many further processes of an engine, which run the same model without a pause."""
    workers = [Worker.start(engine, case.pythons[engine], case.model, case.threads, case.folder) for _ in range(count)]
    for worker in workers:
        assert worker.process.stdin is not None
        worker.process.stdin.write(f"{_FOREVER}\n")
        worker.process.stdin.flush()
    return [worker.process for worker in workers]


class Condition(NamedTuple):
    """Load beside an engine while it has its turn, and a limit under which engines are started."""

    beside: Callable[[Case, str], list[subprocess.Popen[Any]]] = lambda case, engine: []
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
    "n busy loops": Condition(lambda case, engine: busy(PROCESSORS)),
    "2n busy loops": Condition(lambda case, engine: busy(2 * PROCESSORS)),
    "onnxruntime beside": Condition(lambda case, engine: beside(case, REFERENCE, 1)),
    "8 processes": Condition(lambda case, engine: beside(case, engine, 7)),
    "one processor": Condition(limit=one_processor),
    f"quota of {QUOTA:g}": Condition(limit=partial(cpu_quota, QUOTA)),
}


@contextmanager
def others(case: Case, condition: str) -> Iterator[Mapping[str, list[subprocess.Popen[Any]]]]:
    """Start what runs beside each engine, stopped; `running` lets it run."""
    started: dict[str, list[subprocess.Popen[Any]]] = {}
    try:
        for engine in case.pythons:
            started[engine] = CONDITIONS[condition].beside(case, engine)
            for each in started[engine]:
                each.send_signal(signal.SIGSTOP)
        yield started
    finally:
        for each in (process for group in started.values() for process in group):
            each.kill()
            each.wait()


@contextmanager
def running(processes: Sequence[subprocess.Popen[Any]]) -> Iterator[None]:
    """Let stopped processes run."""
    for each in processes:
        each.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        for each in processes:
            each.send_signal(signal.SIGSTOP)


def measure(case: Case, conditions: Sequence[str], rounds: int, seconds: float) -> Iterator[Row]:
    """Yield the rows of a case. A turn lasts `seconds`, or a call where that is longer."""
    for limit, names in groupby(conditions, key=lambda name: CONDITIONS[name].limit):
        with limit():  # before engines start, as they count processors then
            yield from _measure_engines(case, list(names), rounds, seconds)


def _measure_engines(case: Case, conditions: Sequence[str], rounds: int, seconds: float) -> Iterator[Row]:
    workers: dict[str, Worker] = {}
    try:
        for engine, python in case.pythons.items():
            workers[engine] = Worker.start(engine, python, case.model, case.threads, case.folder)
        counts = {engine: max(1, int(seconds / min(worker.run(5)))) for engine, worker in workers.items()}
        for condition in conditions:
            calls: dict[str, list[float]] = {engine: [] for engine in workers}
            with others(case, condition) as started:
                for engine in [engine for _ in range(rounds) for engine in workers]:
                    with running(started[engine]):
                        calls[engine] += _turn(workers[engine], counts[engine], seconds)
            for engine, found in calls.items():
                p99 = sorted(found)[min(len(found) - 1, int(0.99 * len(found)))]
                figures = (1e3 * each for each in (statistics.median(found), statistics.fmean(found), p99))
                yield Row(case.model.stem, condition, case.threads, engine, *figures)
    finally:
        for worker in workers.values():
            worker.close()


def _turn(worker: Worker, count: int, seconds: float) -> list[float]:
    """Return the seconds of calls, as many as fit; beside other work they take longer than alone."""
    worker.run(1)
    found: list[float] = []
    while sum(found) < seconds:
        found += worker.run(max(1, count // 8))
    return found


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
                case = Case(path, threads, pythons, Path(folder))
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
