"""`kernelyard bench MODEL`: time warm runs of an artifact or a model on random numbers."""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import track

from kernelyard.driver.commands.common import (
    compile_options,
    dim_option,
    json_option,
    make_feeds,
    open_executable,
    print_json,
    threads_option,
)

PERCENTILES = (10, 50, 90, 99)


@click.command("bench", help=__doc__)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--repeat", default=100, show_default=True, type=click.IntRange(1), help="Timed runs.")
@click.option("--warm-up", default=10, show_default=True, type=click.IntRange(0), help="Runs before that.")
@dim_option
@threads_option
@compile_options
@json_option
def command(
    model: Path,
    repeat: int,
    warm_up: int,
    dim_values: tuple[str, ...],
    threads: int | None,
    target: str,
    backends: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Time a model."""
    start = time.perf_counter()
    exe = open_executable(model, target, backends, settings, threads)
    ready = time.perf_counter() - start
    feeds = make_feeds(exe, (), dim_values)
    start = time.perf_counter()
    exe.run(feeds)
    first = time.perf_counter() - start
    for _ in range(warm_up):
        exe.run(feeds)
    console = Console(stderr=True)
    times = np.empty(repeat)
    for i in track(range(repeat), "timing", console=console, transient=True, disable=not console.is_terminal):
        start = time.perf_counter()
        exe.run(feeds)
        times[i] = time.perf_counter() - start
    facts = {
        "ready_s": ready,
        "first_run_ms": first * 1e3,
        **{f"p{p}_ms": float(np.percentile(times, p)) * 1e3 for p in PERCENTILES},
        "runs_per_second": float(1 / times.mean()),
        "threads": exe.threads,
        "shapes": {name: list(array.shape) for name, array in feeds.items()},
    }
    if as_json:
        print_json(facts)
        return
    click.echo(f"ready in {ready:.2f} s, first run {first * 1e3:.2f} ms, {exe.threads} threads")
    click.echo(
        "  ".join(f"p{p} {facts[f'p{p}_ms']:.3f} ms" for p in PERCENTILES) + f"  {facts['runs_per_second']:.1f} runs/s"
    )
