"""`kernelyard reduce`: make a failing model small."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.feeds import feeds_options, read_dims
from kernelyard.cli.options import CompileOptions, compile_options, dim_option, json_option
from kernelyard.cli.output import print_json, say
from kernelyard_debug.options import check_one_oracle, check_option, compare_options

if TYPE_CHECKING:
    import numpy as np


@click.command("reduce")
@click.argument("model", type=click.Path(path_type=Path))
@compare_options
@check_option
@feeds_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the result.")
@dim_option
@compile_options
@json_option
def command(
    model: Path,
    against: str | None,
    tolerance: float | None,
    timeout: float,
    check: str | None,
    feeds: dict[str, np.ndarray],
    output: Path | None,
    dim_values: tuple[str, ...],
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Reduce MODEL, which fails, to a few ops that fail in the same way."""
    from kernelyard_debug.reduce import reduce

    check_one_oracle(check, against)
    reduction = reduce(
        model,
        against or "reference",
        feeds,
        check=check,
        tolerance=tolerance,
        timeout=timeout,
        sizes=read_dims(dim_values),
        **how.arguments(),
    )
    if output is not None:
        reduction.save(output)
    if as_json:
        print_json({**reduction.to_json(), "folder": None if output is None else str(output)})
        return
    for line in [*str(reduction).splitlines(), *([] if output is None else [f"saved {output}"])]:
        say(line)
