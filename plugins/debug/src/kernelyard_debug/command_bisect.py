"""`kernelyard bisect`: find the pass, region or kernel that makes a model fail."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.feeds import feeds_options, read_dims
from kernelyard.cli.options import CompileOptions, compile_options, dim_option, json_option
from kernelyard.cli.output import print_json, say
from kernelyard.transform.pass_infra.bisect import BISECT_LIMIT
from kernelyard_debug.options import check_one_oracle, check_option, compare_options

if TYPE_CHECKING:
    import numpy as np


@click.command("bisect")
@click.argument("model", type=click.Path(path_type=Path))
@compare_options
@check_option
@feeds_options
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
    dim_values: tuple[str, ...],
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Find the pass, region or kernel that makes MODEL fail, by binary search."""
    from kernelyard_debug.bisect import bisect

    check_one_oracle(check, against)
    report = bisect(
        model,
        against or "reference",
        feeds,
        check=check,
        tolerance=tolerance,
        timeout=timeout,
        sizes=read_dims(dim_values),
        **how.arguments(),
    )
    number = 0 if report.culprit is None else report.culprit.number
    repeated = f"{BISECT_LIMIT}={number} {_command(model, check)}"
    if as_json:
        print_json({**report.to_json(), "repeat": repeated})
        return
    for line in [*str(report).splitlines(), f"repeat: {repeated}"]:
        say(line)


def _command(model: Path, check: str | None) -> str:
    """Return the command that fails: the user's, or `kernelyard diff` with the options that were given."""
    if check is not None:
        return check.replace("{model}", shlex.quote(str(model)))
    context = click.get_current_context()
    words = ["kernelyard", "diff", str(model)]
    for param in context.command.params:
        name = param.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and isinstance(param, click.Option) and name != "as_json":
            words += _as_given(param.opts[0], context.params[name])
    return shlex.join(words)


def _as_given(option: str, value: object) -> list[str]:
    if value is True:
        return [option]
    return [word for each in (value if isinstance(value, tuple) else [value]) for word in (option, str(each))]
