"""`kernelyard inspect ARTIFACT`: inputs, outputs, programs and modules of a saved model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from kernelyard.driver.commands.common import json_option, print_json


@click.command("inspect", help=__doc__)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--code", is_flag=True, help="Also print programs and modules as text.")
@json_option
def command(artifact: Path, code: bool, as_json: bool) -> None:
    """Inspect an artifact."""
    from kernelyard.runtime.loader import load

    exe = load(artifact)
    facts = {
        "inputs": [asdict(info) for info in exe.inputs],
        "outputs": [asdict(info) for info in exe.outputs],
        "programs": {name: len(program.steps) for name, program in exe.programs.items()},
        "modules": [{"kind": module.kind, "functions": list(module.symbols())} for module in exe.modules],
        "constants": {"count": len(exe.constants), "bytes": sum(array.nbytes for array in exe.constants.values())},
        "target": exe.target,
        "metadata": {name: value if len(value) <= 80 else f"{value[:77]}..." for name, value in exe.metadata.items()},
    }
    if as_json:
        print_json(facts)
        return
    for side in ("inputs", "outputs"):
        for info in facts[side]:
            click.echo(f"{side[:-1]:7} {info['name']}: {info['dtype']} [{', '.join(map(str, info['shape']))}]")
    for module in facts["modules"]:
        click.echo(f"module  {module['kind']}: {len(module['functions'])} functions")
    click.echo(f"steps   {', '.join(f'{name} {count}' for name, count in facts['programs'].items())}")
    click.echo(f"weights {facts['constants']['count']} tensors, {facts['constants']['bytes'] / 1e6:.1f} MB")
    if exe.report_json is not None:
        click.echo(str(exe.report).splitlines()[0])
    if code:
        click.echo(exe.inspect())
