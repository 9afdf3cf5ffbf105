"""`kernelyard view`: one page with the graph of a model, and what is known of each op."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.feeds import feeds_options
from kernelyard.cli.options import CompileOptions, compile_options, dim_option, json_option, threads_option
from kernelyard.cli.output import print_json
from kernelyard.cli.progress import Progress
from kernelyard_view.output_file import check_output, write_output

if TYPE_CHECKING:
    import numpy as np


@click.command("view")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The page (default: FILE.html).")
@click.option("--calls", default=10, show_default=True, type=click.IntRange(0), help="Calls to time; 0: none.")
@click.option("--ir/--no-ir", "with_passes", default=True, show_default=True, help="Show what each pass changed.")
@feeds_options
@dim_option
@threads_option
@compile_options
@json_option
def command(
    files: tuple[Path, ...],
    output: Path | None,
    calls: int,
    with_passes: bool,
    feeds: dict[str, np.ndarray],
    dim_values: tuple[str, ...],
    threads: int | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Write one HTML page that shows FILES: a model, an artifact or a trace, or two of them side by side; and a
    difference (`kernelyard diff --json`), whose errors colour the first."""
    from kernelyard_view.page import view_page
    from kernelyard_view.read import Wanted, read_builds

    output = output or Path(files[0].name).with_suffix(".html")
    check_output(output)
    with Progress(f"looking at {', '.join(file.name for file in files)}"):
        builds = read_builds(files, Wanted(how, feeds, dim_values, threads, calls, with_passes))
        if len(builds) > 2:
            raise click.UsageError(f"{len(builds)} builds are given; a page shows one, or two side by side")
        page = view_page(builds)
    write_output(output, page)
    if as_json:
        facts = [{"title": build.title, "ops": len(build.report.nodes), "steps": len(build.steps)} for build in builds]
        print_json({"page": str(output), "bytes": len(page.encode()), "builds": facts})
        return
    for build in builds:
        click.echo(f"{build.title}: {build.report.summary}")
    click.echo(f"{output}  {len(page.encode()) / 1e6:.1f} MB")
