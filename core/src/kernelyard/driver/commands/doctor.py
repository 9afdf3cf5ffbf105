"""`kernelyard doctor`: is this environment in order? Versions, plugins, what to mend; exits with 1 if anything is."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib import metadata

import click
from rich.console import Console

from kernelyard import __version__
from kernelyard.driver.commands.backends import table_of
from kernelyard.driver.commands.common import json_option, print_json
from kernelyard.plugins.hookspecs import API_VERSION
from kernelyard.plugins.manager import backends

FAULTS = ("broken", "incompatible", "unavailable")
LIBRARIES = ("numpy", "apache-tvm-ffi", "pluggy", "safetensors", "ml_dtypes")


@click.command("doctor", help=__doc__)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Examine the environment."""
    infos = backends()
    faults = [info for info in infos if info.state in FAULTS]
    versions = {"kernelyard": __version__, "plugin API": API_VERSION, "python": platform.python_version()}
    versions |= {name: _version(name) for name in LIBRARIES}
    machine = f"{platform.system()} {platform.machine()}"
    if as_json:
        plugins = [asdict(info) for info in infos]
        print_json({"healthy": not faults, "machine": machine, "versions": versions, "plugins": plugins})
    else:
        console = Console()
        console.print(
            f"{machine}  " + "  ".join(f"{name} {version}" for name, version in versions.items()), highlight=False
        )
        console.print(table_of(infos))
        if not any("code_generator" in info.provides and info.state == "active" for info in infos):
            console.print("no code generator is active: what no library takes runs on the slow reference interpreter")
        console.print(f"[red]{len(faults)} to mend[/red]" if faults else "[green]all in order[/green]")
    ctx.exit(1 if faults else 0)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"
