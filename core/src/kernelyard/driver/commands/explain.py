"""`kernelyard explain`: placement, without generating code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.driver.commands.common import (
    CompileOptions,
    compile_options,
    is_artifact,
    json_option,
    placement_option,
    print_json,
    say,
    terminal_width,
)
from kernelyard.driver.progress import Progress
from kernelyard.errors import ArtifactError

if TYPE_CHECKING:
    from kernelyard.runtime.report import Report


@click.command("explain")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with the graph.")
@click.option("--kernels", is_flag=True, help="Show the kernels, and what is fused into each, instead.")
@click.option("--cuts", metavar="NAME", help="Show which operators cut a backend's regions.")
@placement_option
@compile_options
@json_option
def command(
    model: Path,
    page: Path | None,
    kernels: bool,
    cuts: str | None,
    placement: Path | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Show which backend would run which part of MODEL, what would be declined, and why; nothing is compiled. Of an
    artifact, show which backends run it."""
    if cuts is not None:
        if page is not None or kernels or placement is not None or is_artifact(model):
            raise click.UsageError("--cuts goes with a model, and with none of --html, --kernels and --placement")
        _show_cuts(model, cuts, how, as_json)
        return
    with Progress(f"placing {model}"):
        report = _report(model, how, placement)
    if page is not None:
        from kernelyard.driver.report_page import report_page

        try:
            page.write_text(report_page(report, model.name), encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{page} cannot be written: {error.strerror}", param_hint="--html") from error
    if as_json:
        print_json(report.to_json())
    elif page is not None:
        say(report.summary)
        click.echo(str(page))
    elif kernels:
        click.echo(report.kernel_text(terminal_width()))
    else:
        click.echo(report.text(terminal_width()))


def _show_cuts(model: Path, backend: str, how: CompileOptions, as_json: bool) -> None:
    from kernelyard.driver.region_cuts import region_cuts

    with Progress(f"placing {model}"):
        arguments = how.arguments()
        arguments["backends"] = arguments["backends"] if how.backends else None
        found = region_cuts(model, backend, **arguments)
    if as_json:
        print_json(found.to_json())
        return
    for line in found.lines(terminal_width()):
        click.echo(line)


def _report(model: Path, how: CompileOptions, placement: Path | None) -> Report:
    """Return the report that an artifact was saved with, or that of a compile to be."""
    if not is_artifact(model):
        from kernelyard.driver.compile import explain

        return explain(model, placement=placement, **how.arguments())
    from kernelyard.runtime.artifact.container import read_container
    from kernelyard.runtime.report import Report

    how.refuse(model)
    if placement is not None:
        raise click.UsageError(f"--placement is an option of compilation, and {model} is compiled already")
    saved = read_container(model).manifest.any("report")
    if saved is None:
        raise ArtifactError(f"{model} was saved without a report", hint="compile the model again")
    return Report.from_json(saved)
