"""`kernelyard bench`: how long runs take, the first one and warm ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.feeds import feeds_options, make_feeds
from kernelyard.cli.model_files import open_executable
from kernelyard.cli.options import CompileOptions, compile_options, dim_option, json_option, threads_option
from kernelyard.cli.output import print_json
from kernelyard.cli.progress import Progress
from kernelyard.runtime.text_table import duration

if TYPE_CHECKING:
    import numpy as np

    from kernelyard.runtime.profiling.profile import Profile

PERCENTILES = (10, 50, 90, 99)


@click.command("bench")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--repeat", default=100, show_default=True, type=click.IntRange(1), help="Timed runs.")
@click.option("--warm-up", default=10, show_default=True, type=click.IntRange(0), help="Runs before that.")
@click.option("--profile", "with_profile", is_flag=True, help="Also print a profile of the steps.")
@click.option("--trace", type=click.Path(path_type=Path, dir_okay=False), help="Write a trace for Perfetto or Chrome.")
@feeds_options
@dim_option
@threads_option
@compile_options
@json_option
def command(
    model: Path,
    repeat: int,
    warm_up: int,
    with_profile: bool,
    trace: Path | None,
    feeds: dict[str, np.ndarray],
    dim_values: tuple[str, ...],
    threads: int | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Time MODEL, an artifact or a model to be compiled, on files or on random numbers."""
    import numpy as np

    with Progress(f"preparing {model}"):  # but nothing moves on the screen while runs are timed
        start = time.perf_counter()
        exe = open_executable(model, how, threads)
        ready = time.perf_counter() - start
        feeds = make_feeds(exe, feeds, dim_values)
    times = np.empty(1 + warm_up + repeat)
    for i in range(len(times)):
        start = time.perf_counter()
        exe.run(feeds)
        times[i] = time.perf_counter() - start
    first, warm = float(times[0]), times[1 + warm_up :]
    milliseconds = {f"p{p}_ms": float(np.percentile(warm, p)) * 1e3 for p in PERCENTILES}
    runs_per_second = float(1 / warm.mean())
    profile = exe.profile(feeds) if with_profile or trace is not None else None
    if profile is not None and trace is not None:
        _save_trace(profile, trace)
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    if as_json:
        facts = {"ready_s": ready, "first_run_ms": first * 1e3, **milliseconds, "runs_per_second": runs_per_second}
        steps = {"profile": profile.to_json()} if profile is not None else {}
        print_json({**facts, "repeat": repeat, "threads": exe.threads, "shapes": shapes, **steps})
        return
    click.echo("  ".join(f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items()))
    click.echo(f"ready in {duration(ready)}, first run {duration(first)}, threads: {exe.threads}")
    percentiles = "  ".join(f"p{p} {duration(1e-3 * milliseconds[f'p{p}_ms'])}" for p in PERCENTILES)
    click.echo(f"{percentiles}  {runs_per_second:.0f} runs/s")
    if profile is not None and with_profile:
        click.echo(f"\n{profile.table}")


def _save_trace(profile: Profile, path: Path) -> None:
    try:
        profile.save_trace(path)
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint="--trace") from error
