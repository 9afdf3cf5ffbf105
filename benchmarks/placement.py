"""Measured placement, the default and each backend alone, in turns, in a run that did not choose.

    python benchmarks/placement.py MODEL.onnx ... [--threads 1 2] [--effort 10] [--turns 30] [--results FILE.json]

For each model a process measures placements and writes its decision; this one then compiles the model by the decision,
by default, with each backend first and with generated kernels alone, and runs all in turns. Feeds come from the .npz
file beside a model where it has arrays by the names of inputs (recipes/ writes such files). Ratios are of one run: the
time of the best single backend over that of the measured placement, and over that of the default; above 1, these are
faster.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import kernelyard as ky
from kernelyard.driver.measured_placement import save_placements
from kernelyard_tune.feeds import make_feeds
from kernelyard_tune.race import Race, Racer

MEASURED, DEFAULT = "measured", "default"


def feeds_beside(model: Path) -> dict[str, np.ndarray]:
    """Return the arrays in the .npz file of a model; none where there is no such file."""
    path = model.with_suffix(".npz")
    if not path.exists():
        return {}
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def tuning_of(model: Path, effort: float, threads: int) -> ky.Tuning:
    """Return how a model is measured: with those arrays beside it that are inputs."""
    exe = ky.compile(model)
    names = {info.name for info in exe.inputs}
    feeds = {name: array for name, array in feeds_beside(model).items() if name in names}
    return ky.Tuning(effort, threads, feeds, remember=False)


def choose(model: Path, effort: float, threads: int, file: Path) -> None:
    """Measure placements, and write the decision: in a process of its own."""
    decision = ky.compile(model, tune=tuning_of(model, effort, threads)).report.decision
    if decision is not None:
        save_placements(file, [decision])


def singles() -> dict[str, Sequence[str]]:
    """Return the backends of each placement of a single one by its name."""
    usable = [info for info in ky.backends() if info.state == "active" and "cpu" in info.targets]
    names = [info.name for info in usable if "backend" in info.provides]
    return {"generated alone": [], **{f"{name} first": [name] for name in names}}


def placed(exe: ky.Executable) -> list[tuple[str, str, str]]:
    """Return what runs each operator: two programs of which this is the same are one, whatever their times are."""
    return [(node.backend, node.pattern, node.function) for node in exe.report.nodes]


def raced(model: Path, tuning: ky.Tuning, file: Path, turns: int) -> tuple[str, Mapping[str, float], float, float]:
    """Return what was chosen, medians of seconds by placement, and both ratios."""
    executables = {MEASURED: ky.compile(model, placement=file), DEFAULT: ky.compile(model)}
    executables |= {name: ky.compile(model, backends=names) for name, names in singles().items()}
    for exe in executables.values():
        exe.threads = tuning.threads
    feeds = make_feeds(executables[DEFAULT], tuning.feeds, {})
    clock = time.thread_time if tuning.threads == 1 else time.perf_counter
    race = Race({name: partial(exe.run, feeds) for name, exe in executables.items()}, clock)
    for racer in race.racers:
        racer.call()
    race.size_turns()
    for number in range(turns):
        race.turn(number)
    racers: dict[str, Racer] = {racer.name: racer for racer in race.racers}
    best = race.fastest([racers[name] for name in singles()])
    is_same = {name: placed(executables[name]) == placed(executables[best.name]) for name in (MEASURED, DEFAULT)}
    ratios = [1.0 if same else race.compare_racers(racers[name], best).ratio for name, same in is_same.items()]
    decision = executables[MEASURED].report.decision
    seconds = {name: float(np.median(racer.seconds)) for name, racer in racers.items()}
    return decision.name if decision is not None else "none", seconds, ratios[0], ratios[1]


def main() -> None:
    """Measure the models of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--effort", type=float, default=10.0, help="seconds")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    spawned = multiprocessing.get_context("spawn")
    for model in args.models:
        for threads in args.threads:
            with tempfile.TemporaryDirectory() as folder:
                file, start = Path(folder) / "placement.json", time.monotonic()
                process = spawned.Process(target=choose, args=(model, args.effort, threads, file))
                process.start()
                process.join()
                took = time.monotonic() - start
                if not file.exists():
                    print(f"{model.stem}: nothing was chosen, see above", flush=True)
                    continue
                tuning = tuning_of(model, args.effort, threads)
                chosen, seconds, measured, default = raced(model, tuning, file, args.turns)
            row = {"model": model.stem, "threads": threads, "chosen": chosen, "choosing_seconds": took}
            rows.append({**row, "measured": measured, "default": default, "seconds": seconds})
            times = ", ".join(f"{name} {each * 1e3:.3g} ms" for name, each in seconds.items())
            print(f"{model.stem} x{threads}: {chosen}: {measured:.3f}, default {default:.3f}; {times}", flush=True)
    for which in (MEASURED, DEFAULT):
        ratios = [float(str(row[which])) for row in rows]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"{which} / best single: geometric mean {mean:.3f}, least {min(ratios):.3f}")
    if args.results is not None:
        args.results.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
