"""`kernelyard tune`: measure placements of a model, and save the decision, or the model compiled by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelyard.driver.commands.common import (
    ARTIFACT_SUFFIX,
    CompileOptions,
    compile_options,
    dim_option,
    json_option,
    print_json,
    read_array,
    read_dims,
    remote_cache_option,
    say,
    terminal_width,
    threads_option,
)


@click.command("tune")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help=f"Save the model compiled: a {ARTIFACT_SUFFIX} file."
)
@click.option("--placement", type=click.Path(path_type=Path), help="Save the decision; other ones in that file stay.")
@click.option("--effort", default="quick", metavar="EFFORT", help="quick (10 s), full (60 s), or seconds.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input to measure with.")
@click.option("--again", is_flag=True, help="Measure what this machine remembers already.")
@remote_cache_option
@dim_option
@threads_option
@compile_options
@json_option
def command(
    model: Path,
    output: Path | None,
    placement: Path | None,
    effort: str,
    inputs: tuple[str, ...],
    again: bool,
    remote_cache: str | None,
    dim_values: tuple[str, ...],
    threads: int | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Measure which placement of MODEL is the quickest on this machine: the default, each backend first, or generated
    kernels alone. Ctrl-C keeps the best found so far."""
    from kernelyard.driver.compile import compile as compile_model
    from kernelyard.driver.measured_placement import Tuning, save_placements

    feeds = dict(map(read_array, inputs))
    tuning = Tuning(_effort(effort), threads, feeds, read_dims(dim_values), not again, remote_cache)
    exe = compile_model(model, tune=tuning, **how.arguments())
    decision = exe.report.decision
    facts: dict[str, Any] = {"decision": decision.to_json() if decision is not None else None}
    if placement is not None and decision is not None:
        save_placements(placement, [decision])
        facts["placement"] = str(placement)
    if output is not None:
        exe.save(output)
        facts["artifact"] = str(output)
    if as_json:
        print_json(facts)
        return
    for line in decision.lines(terminal_width()) if decision is not None else ["nothing was measured"]:
        click.echo(line)
    for name in ("placement", "artifact"):
        if name in facts:
            say(f"saved {facts[name]}")


def _effort(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
