"""`kernelyard fuzz`: attack the compiler with random graphs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from kernelyard.driver.commands.common import json_option, print_json, say


@click.command("fuzz")
@click.option("--minutes", type=click.FloatRange(0), default=1.0, show_default=True, help="How long.")
@click.option("--seed", type=click.IntRange(0), help="Of the first graph (default: other ones every time).")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for what is found.")
@json_option
def command(minutes: float, seed: int | None, output: Path | None, as_json: bool) -> None:
    """Compile and run random graphs in random configurations, and hold the results against references.

    Exits with 1 where something is wrong.
    """
    from kernelyard_debug.progress import Progress
    from kernelyard_fuzz.campaign import Tally, run_campaign

    first = int(time.time()) * 1000 if seed is None else seed
    with Progress("fuzzing") as progress:

        def step(tally: Tally) -> None:
            progress.step(f"{tally.graphs} graphs, {len(tally.finds)} finds")

        tally = run_campaign(first, minutes * 60, step=step, folder=output)
    if as_json:
        print_json({"seed": first, **tally.to_json()})
    else:
        rate = tally.graphs / tally.seconds if tally.seconds else 0.0
        say(f"{tally.graphs} graphs from seed {first}, {rate:.1f} per second of processor time")
        for find in tally.finds:
            where = f" after pass {find.place}" if find.place else ""
            say(f"seed {find.seed}: {find.oracle}: {find.kind}{where}: {find.message.splitlines()[0]}")
    if tally.finds:
        raise click.exceptions.Exit(1)
