"""`kernelyard compile`: from a model to one file."""

from __future__ import annotations

from pathlib import Path

import click

from kernelyard.driver.commands.common import (
    ARTIFACT_SUFFIX,
    CompileOptions,
    busy,
    compile_options,
    json_option,
    placement_option,
    print_json,
)
from kernelyard.errors import ArtifactError


@click.command("compile")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The artifact (default: the model's name).")
@placement_option
@compile_options
@json_option
def command(model: Path, output: Path | None, placement: Path | None, how: CompileOptions, as_json: bool) -> None:
    """Compile MODEL and save it as one .kyar file, written whole or not at all."""
    from kernelyard.driver.compile import compile as compile_model

    output = output or model.with_suffix(ARTIFACT_SUFFIX)
    if not output.parent.is_dir():  # known before the work is done
        raise ArtifactError(f"cannot write {output}", found=f"there is no folder {output.parent}")
    with busy(f"compiling {model}"):
        exe = compile_model(model, placement=placement, **how.arguments())
        exe.save(output)
    nbytes = output.stat().st_size
    if as_json:
        print_json({"artifact": str(output), "bytes": nbytes, "report": exe.report.to_json()})
        return
    click.echo(exe.report.summary)
    click.echo(f"{output}  {nbytes / 1e6:.1f} MB")
