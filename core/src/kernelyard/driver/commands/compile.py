"""`kernelyard compile MODEL`: compile a model and save it as one .kyar file."""

from __future__ import annotations

from pathlib import Path

import click

from kernelyard.driver.commands.common import backend_list, backend_options, compile_options, json_option, print_json


@click.command("compile", help=__doc__)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The artifact (default: the model's name).")
@compile_options
@json_option
def command(
    model: Path, output: Path | None, target: str, backends: str, settings: tuple[str, ...], as_json: bool
) -> None:
    """Compile and save."""
    from kernelyard.driver.compile import compile as compile_model

    exe = compile_model(model, target=target, backends=backend_list(backends), options=backend_options(settings))
    output = output or model.with_suffix(".kyar")
    exe.save(output)
    if as_json:
        print_json({"artifact": str(output), "bytes": output.stat().st_size, "report": exe.report.to_json()})
        return
    click.echo(str(exe.report).splitlines()[0])
    click.echo(f"{output}  {output.stat().st_size / 1e6:.1f} MB")
