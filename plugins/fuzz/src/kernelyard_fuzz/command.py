"""`kernelyard fuzz`: attack the compiler with random graphs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.options import json_option
from kernelyard.cli.output import print_json, say

if TYPE_CHECKING:
    from kernelyard_fuzz.campaign import Tally


@click.command("fuzz")
@click.option("--minutes", type=click.FloatRange(0), default=1.0, show_default=True, help="How long to run.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the first graph (default: a new one each time).")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the graphs that fail.")
@click.option(
    "--replay", type=click.Path(path_type=Path), metavar="FOLDER", help="Run one failing graph of such a folder again."
)
@json_option
def command(minutes: float, seed: int | None, output: Path | None, replay: Path | None, as_json: bool) -> None:
    """Compile and run random graphs in random configurations, and hold the results against references.

    Exits with 1 where something is wrong.
    """
    from kernelyard_fuzz import campaign
    from kernelyard_fuzz.coverage import find_never_taken
    from kernelyard_fuzz.graphs import Recipe

    first = int(time.time()) * 1000 if seed is None else seed
    tally = campaign.replay(replay) if replay is not None else _search(first, minutes, output)
    never = find_never_taken(tally.taken, Recipe(patterns=campaign.all_patterns()))
    if as_json:
        print_json({"seed": first, **tally.to_json(), "never_taken": never})
    else:
        rate = tally.graphs / tally.seconds if tally.seconds else 0.0
        say(f"{tally.graphs} graphs from seed {first}, {rate:.1f} per second of processor time")
        for kind, names in never.items() if replay is None else ():
            say(
                f"{kind} that never took part ({len(names)}): {', '.join(names)}"
                if names
                else f"every {kind} took part"
            )
        for find in tally.finds:
            where = f" after pass {find.place}" if find.place else ""
            say(f"seed {find.seed}: {find.oracle}: {find.kind}{where}: {find.message.splitlines()[0]}")
    if tally.finds:
        raise click.exceptions.Exit(1)


def _search(first: int, minutes: float, output: Path | None) -> Tally:
    from kernelyard.cli.progress import Progress
    from kernelyard_fuzz.campaign import run_campaign

    with Progress("fuzzing") as progress:

        def step(tally: Tally) -> None:
            progress.step(f"{tally.graphs} graphs, {len(tally.finds)} finds")

        return run_campaign(first, minutes * 60, step=step, folder=output)
