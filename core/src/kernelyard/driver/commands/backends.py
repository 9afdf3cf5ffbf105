"""`kernelyard backends`: every plugin that is installed, its state, and why it cannot be used."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from kernelyard.driver.commands.common import json_option, print_json
from kernelyard.plugins.manager import BackendInfo, backends

STYLES = {"active": "green", "unavailable": "yellow", "blocked": "yellow", "incompatible": "red", "broken": "red"}


@click.command("backends", help=__doc__)
@json_option
def command(as_json: bool) -> None:
    """List plugins."""
    infos = backends()
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    Console().print(table_of(infos))


def table_of(infos: list[BackendInfo]) -> Table:
    """Plugins as a table."""
    table = Table(
        "name", "state", "provides", "targets", "distribution", "api", "remark", box=None, header_style="bold"
    )
    for info in infos:
        remark = info.reason or info.summary
        if info.hint and info.state != "active":
            remark = f"{remark}\n→ {info.hint}"
        state = f"[{STYLES.get(info.state, 'white')}]{info.state}[/]"
        provides = ", ".join(info.provides)
        table.add_row(
            info.name, state, provides, ", ".join(info.targets), f"{info.dist} {info.version}", info.api, remark
        )
    return table
