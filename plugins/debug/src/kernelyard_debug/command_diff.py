"""`kernelyard diff`: find the first layer of a model that departs from another runner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.feeds import feeds_options, read_dims
from kernelyard.cli.options import CompileOptions, compile_options, dim_option, json_option
from kernelyard.cli.output import print_json, say
from kernelyard_debug.options import compare_options

if TYPE_CHECKING:
    import numpy as np


@click.command("diff")
@click.argument("model", type=click.Path(path_type=Path))
@compare_options
@feeds_options
@click.option("--every-layer", is_flag=True, help="Measure all layers, where the outputs agree as well.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for a plot of the errors (SVG).")
@dim_option
@compile_options
@json_option
def command(
    model: Path,
    against: str | None,
    tolerance: float | None,
    timeout: float,
    feeds: dict[str, np.ndarray],
    every_layer: bool,
    output: Path | None,
    dim_values: tuple[str, ...],
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Compare MODEL, compiled, with another runner, layer by layer. Exits with 1 where they depart."""
    from kernelyard_debug.diff import diff

    report = diff(
        model,
        against or "reference",
        feeds,
        tolerance=tolerance,
        every_layer=every_layer,
        timeout=timeout,
        sizes=read_dims(dim_values),
        **how.arguments(),
    )
    if output is not None:
        report.save_plot(output)
    if as_json:
        print_json(report.to_json())
    else:
        for line in str(report).splitlines():
            say(line)
    click.get_current_context().exit(1 if report.departs else 0)
