"""`kernelyard explain MODEL`: what would be offloaded, what would not, and why; generates no code."""

from __future__ import annotations

from pathlib import Path

import click

from kernelyard.driver.commands.common import backend_list, compile_options, json_option, print_json


@click.command("explain", help=__doc__)
@click.argument("model", type=click.Path(path_type=Path))
@compile_options
@json_option
def command(model: Path, target: str, backends: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Explain placement."""
    from kernelyard.driver.compile import explain

    report = explain(model, target=target, backends=backend_list(backends))
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(str(report))
