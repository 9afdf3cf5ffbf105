"""`kernelyard trace`: where the time of calls goes, as a trace and as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.feeds import feeds_options, make_feeds
from kernelyard.cli.model_files import open_executable
from kernelyard.cli.options import CompileOptions, compile_options, dim_option, json_option, threads_option
from kernelyard.cli.output import print_json, terminal_width
from kernelyard.cli.progress import Progress
from kernelyard_view.output_file import check_output, write_output

if TYPE_CHECKING:
    import numpy as np


@click.command("trace")
@click.argument("model", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The trace (default: none).")
@click.option("--calls", default=10, show_default=True, type=click.IntRange(1), help="Calls to time.")
@click.option("--callers", default=1, show_default=True, type=click.IntRange(1, 256), help="Threads that call at once.")
@feeds_options
@dim_option
@threads_option
@compile_options
@json_option
def command(
    model: Path,
    output: Path | None,
    calls: int,
    callers: int,
    feeds: dict[str, np.ndarray],
    dim_values: tuple[str, ...],
    threads: int | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Time the steps of MODEL, an artifact or a model to be compiled, and write a trace for https://ui.perfetto.dev.

    Each row is called after the node of the model that it computes. `kernelyard view` shows the trace, too."""
    from kernelyard_view.live_table import live_table
    from kernelyard_view.roof import measure_roof
    from kernelyard_view.step_table import step_lines
    from kernelyard_view.trace import take_trace

    if output is not None:
        check_output(output)
    with Progress(f"preparing {model}"):
        executable = open_executable(model, how, threads)
        feeds = make_feeds(executable, feeds, dim_values)
        roof = measure_roof(executable.threads)
    with live_table(calls, roof) as watch:
        trace = take_trace(executable, model.name, feeds, calls, callers, roof, watch)
    if output is not None:
        write_output(output, json.dumps(trace.to_json()) + "\n")
    if as_json:
        facts = {"trace": str(output) if output is not None else None, "callers": callers, "roof": roof}
        print_json({**facts, "threads": executable.threads, "profile": trace.profiles[0].to_json()})
        return
    for line in step_lines(trace.profiles[0], roof, terminal_width()):
        click.echo(line)
    if output is not None:
        click.echo(f"{output}: open it in https://ui.perfetto.dev, or by `kernelyard view {output}`")
