"""`kernelyard tune`: measure placements of a model, and save the decision, or the model compiled by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.feeds import feeds_options, read_dims
from kernelyard.cli.model_files import ARTIFACT_SUFFIX
from kernelyard.cli.options import CompileOptions, compile_options, json_option, remote_cache_option, threads_option
from kernelyard.cli.output import print_json, say, terminal_width

if TYPE_CHECKING:
    import numpy as np

    from kernelyard.driver.measured_placement import Tuning
    from kernelyard_tune.spread import Tuned
    from kernelyard_tune.work import Limits


@click.command("tune")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help=f"Save the compiled model: a {ARTIFACT_SUFFIX} file."
)
@click.option(
    "--placement", type=click.Path(path_type=Path), help="Save the placement; other models' in that file stay."
)
@click.option(
    "--effort", default="quick", metavar="EFFORT", help="Time to measure: quick (10 s), full (60 s), or seconds."
)
@feeds_options
@click.option("--again", is_flag=True, help="Measure again what this machine has in its cache.")
@click.option("--on", metavar="POOL", help="Workers that measure: local://4, dask://host:8786, ray://host:10001.")
@click.option(
    "--limit-seconds", default=1800.0, metavar="N", help="With --on: time limit of one measurement (default: 1800)."
)
@click.option("--limit-mb", default=0, metavar="N", help="With --on: memory limit of one measurement (default: none).")
@remote_cache_option
@click.option(
    "--dim",
    "dim_values",
    multiple=True,
    metavar="NAME=N[,N...]",
    help="Size of a symbolic dimension; of several, each is measured, and runs take the placement of the nearest.",
)
@threads_option
@compile_options
@json_option
def command(
    models: tuple[Path, ...],
    output: Path | None,
    placement: Path | None,
    effort: str,
    feeds: dict[str, np.ndarray],
    again: bool,
    on: str | None,
    limit_seconds: float,
    limit_mb: int,
    remote_cache: str | None,
    dim_values: tuple[str, ...],
    threads: int | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Measure which placement of each MODEL is the fastest on this machine, or on the workers of a pool: the default,
    each backend first, or generated kernels alone. Ctrl-C keeps the best found so far."""
    from kernelyard.driver.measured_placement import Tuning, save_placements
    from kernelyard_tune.work import Limits

    if output is not None and len(models) > 1:
        raise click.UsageError("-o saves one model, and several are given")
    tuning = Tuning(_effort(effort), threads, feeds, _sets_of_sizes(dim_values), not again, remote_cache)
    if on is None:
        tuned = _here(models, tuning, how, output)
    else:
        tuned = _on(on, models, tuning, how, output, Limits(limit_seconds, limit_mb))
    if placement is not None:
        save_placements(placement, tuned.decisions.values())
    saved = {"placement": placement, "artifact": output} if tuned.decisions else {}
    _report(tuned, {name: str(path) for name, path in saved.items() if path is not None}, len(models), as_json)
    if tuned.failures:
        raise click.exceptions.Exit(1)


def _here(models: Sequence[Path], tuning: Tuning, how: CompileOptions, output: Path | None) -> Tuned:
    """Measure on this machine, one model after another."""
    from kernelyard.driver.compile import compile as compile_model
    from kernelyard_tune.spread import Tuned

    tuned = Tuned()
    for model in models:
        exe = compile_model(model, tune=tuning, **how.arguments())
        if exe.report.decision is not None:
            tuned.decisions[str(model)] = exe.report.decision
        if output is not None:
            exe.save(output)
    return tuned


def _on(
    url: str, models: Sequence[Path], tuning: Tuning, how: CompileOptions, output: Path | None, limits: Limits
) -> Tuned:
    """Measure on the workers of a pool."""
    from kernelyard.cli.progress import Progress
    from kernelyard.driver.compile import compile as compile_model
    from kernelyard.driver.compile import request_to_tune
    from kernelyard.ir import to_text
    from kernelyard_tune.pools import open_pool
    from kernelyard_tune.spread import tune_on
    from kernelyard_tune.work import Work

    tuning.seconds  # noqa: B018  checked before anything is asked
    tuning = replace(tuning, threads=tuning.threads or 1)  # of a core each
    arguments = how.arguments()
    pool = open_pool(url)
    try:
        pool.prepare(tuning.threads or 1)
        requests = {str(model): request_to_tune(model, tuning, **arguments) for model in models}
        works = {name: Work(to_text(each.module), arguments, tuning, limits=limits) for name, each in requests.items()}
        with Progress(f"measuring on {url}") as progress:
            tuned = tune_on(pool, {name: (requests[name], works[name]) for name in works}, progress.step)
    finally:
        pool.close()
    for model, decision in tuned.decisions.items() if output is not None else ():
        compile_model(model, placement=decision, **arguments).save(str(output))
    return tuned


def _report(tuned: Tuned, saved: dict[str, str], count: int, as_json: bool) -> None:
    for name, why in tuned.left_out.items():
        click.echo(f"left out: {name}: {why}", err=True)
    for name, error in tuned.failures.items():
        click.echo(f"{name}: {error}", err=True)
    if as_json:
        found = {name: decision.to_json() for name, decision in tuned.decisions.items()}
        failed = {name: error.to_json() for name, error in tuned.failures.items()}
        only = next(iter(found.values()), None) if count == 1 else None
        many: dict[str, Any] = {"decisions": found, "failed": failed}
        facts = {"decision": only} if count == 1 and not failed else many
        print_json({**facts, **saved, **({"left_out": tuned.left_out} if tuned.left_out else {})})
        return
    for name, decision in tuned.decisions.items():
        if count > 1:
            click.echo(f"{name}:")
        for line in decision.lines(terminal_width()):
            click.echo(line)
    for path in saved.values():
        say(f"saved {path}")


def _sets_of_sizes(dim_values: Sequence[str]) -> list[dict[str, int]]:
    """Parse `n=1,16` and `m=8` as [{"n": 1, "m": 8}, {"n": 16, "m": 8}]. Raises: BadParameter."""
    choices: list[list[str]] = []
    for item in dim_values:
        name, _, sizes = item.partition("=")
        choices.append([f"{name}={size}" for size in sizes.split(",")])
    return [read_dims(chosen) for chosen in product(*choices)]


def _effort(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
