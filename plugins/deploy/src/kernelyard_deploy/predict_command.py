"""`kernelyard predict`: a model over the rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from kernelyard.cli.options import json_option
from kernelyard.cli.output import print_json
from kernelyard_deploy.batch_predict import BATCH_ROWS, RETRIES, SHARD_ROWS, predict_table

_PATH = click.Path(path_type=Path)
_COUNT = click.IntRange(1)


@click.command("predict")
@click.argument("artifact", type=_PATH)
@click.argument("tables", nargs=-1, required=True, type=_PATH)
@click.option(
    "-o", "--output", required=True, type=_PATH, help="Folder for the results; an unfinished job there is resumed."
)
@click.option("--keep", multiple=True, metavar="COLUMN", help="Copy this input column to the results; repeatable.")
@click.option("--workers", type=_COUNT, help="Worker processes (default: one for each processor).")
@click.option("--threads", type=_COUNT, help="Threads of each worker (default: its share of the processors).")
@click.option(
    "--shard-rows", type=_COUNT, default=SHARD_ROWS, help=f"Rows in each output file (default: {SHARD_ROWS})."
)
@click.option(
    "--batch-rows", type=_COUNT, default=BATCH_ROWS, help=f"Rows in each call of the model (default: {BATCH_ROWS})."
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=RETRIES,
    help=f"Times to retry an output file that fails (default: {RETRIES}).",
)
@json_option
def command(
    artifact: Path,
    tables: Sequence[Path],
    output: Path,
    keep: Sequence[str],
    workers: int | None,
    threads: int | None,
    shard_rows: int,
    batch_rows: int,
    retries: int,
    as_json: bool,
) -> None:
    """Run ARTIFACT over all rows of TABLES (.parquet, .npz). A job that was stopped is resumed by the same command."""
    report = predict_table(
        artifact,
        tables,
        output,
        keep=keep,
        workers=workers,
        threads=threads,
        shard_rows=shard_rows,
        batch_rows=batch_rows,
        retries=retries,
    )
    if as_json:
        print_json(report.to_json())
        return
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    click.echo(f"{report.rows} rows in {len(report.parts)} parts{resumed}; {report.failures} failures")
