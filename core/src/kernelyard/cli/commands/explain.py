"""`kernelyard explain`: placement, without generating code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.model_files import is_artifact
from kernelyard.cli.options import CompileOptions, compile_options, json_option, placement_option
from kernelyard.cli.output import print_json, say, terminal_width
from kernelyard.cli.progress import Progress
from kernelyard.errors import ArtifactError

if TYPE_CHECKING:
    from kernelyard.runtime.report import Report


@click.command("explain")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with the graph.")
@click.option("--kernels", is_flag=True, help="Show the kernels, and what is fused into each, instead.")
@click.option("--cuts", metavar="NAME", help="Show which operators cut a backend's regions.")
@click.option("--offered", is_flag=True, help="Print the model as patterns of backends meet it, instead.")
@placement_option
@compile_options
@json_option
def command(
    model: Path,
    page: Path | None,
    kernels: bool,
    cuts: str | None,
    offered: bool,
    placement: Path | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Show which backend would run which part of MODEL, what would be declined, and why; nothing is compiled. Of an
    artifact, show which backends run it."""
    if cuts is not None or offered:
        what = "--offered" if offered else "--cuts"
        others = {"--html": page, "--kernels": kernels, "--placement": placement, "--json": offered and as_json}
        _refuse_others(what, model, [name for name, given in others.items() if given])
        if offered:
            _show_offered(model, how)
        elif cuts is not None:
            _show_cuts(model, cuts, how, as_json)
        return
    with Progress(f"placing {model}"):
        report = _report(model, how, placement)
    if page is not None:
        from kernelyard.driver.report.report_page import report_page

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


def _refuse_others(what: str, model: Path, given: Sequence[str]) -> None:
    if given or is_artifact(model):
        raise click.UsageError(f"{what} goes with a model, and not with {' and '.join(given) or 'an artifact'}")


def _show_offered(model: Path, how: CompileOptions) -> None:
    from kernelyard.driver.compile import offered_module
    from kernelyard.ir import to_text

    arguments = how.arguments()
    with Progress(f"simplifying {model}"):
        text = to_text(offered_module(model, **{**arguments, "backends": ()}), constants="elided")
    click.echo(text)


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
    from kernelyard.runtime.artifact.kyar import read_report
    from kernelyard.runtime.report import Report

    how.refuse(model)
    if placement is not None:
        raise click.UsageError(f"--placement is an option of compilation, and {model} is compiled already")
    saved = read_report(read_container(model))
    if saved is None:
        raise ArtifactError(f"{model} was saved without a report", hint="compile the model again")
    return Report.from_json(saved)
