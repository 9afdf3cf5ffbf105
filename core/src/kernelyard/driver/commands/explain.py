"""`kernelyard explain`: placement, without generating code."""

from __future__ import annotations

from pathlib import Path

import click

from kernelyard.driver.commands.common import CompileOptions, busy, compile_options, json_option, print_json


@click.command("explain")
@click.argument("model", type=click.Path(path_type=Path))
@compile_options
@json_option
def command(model: Path, how: CompileOptions, as_json: bool) -> None:
    """Show which backend would run which part of MODEL, what would be declined, and why; nothing is compiled."""
    from kernelyard.driver.compile import explain

    with busy(f"placing {model}"):
        report = explain(model, **how.arguments())
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(str(report))
