"""`kernelyard backends`: the installed plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain

import click

from kernelyard.cli.options import json_option
from kernelyard.cli.output import print_json, say
from kernelyard.driver.session.choose_backends import order_of_auto
from kernelyard.plugins.discovery.manager import BackendInfo, backends, get_manager
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.runtime.text_table import align_rows

COLORS = {"active": "green", "unavailable": "yellow", "blocked": "yellow", "incompatible": "red", "broken": "red"}


@click.command("backends")
@json_option
def command(as_json: bool) -> None:
    """List the installed plugins with their states and faults."""
    infos, orders = backends(), _orders()
    if as_json:
        print_json([{**asdict(info), "asked": _positions(info, orders)} for info in infos])
        return
    for line in describe(infos) or ["no plugin is installed; pip install 'kernelyard[cpu]'"]:
        say(line)
    priorities = {info.name: info.priority for info in infos}
    for kind, order in orders.items():
        facts = ["states costs" if each.states_costs else f"priority {priorities[each.name]}" for each in order]
        asked = ", then ".join(f"{each.name} ({fact})" for each, fact in zip(order, facts, strict=True))
        say(f"asked for {kind} with backends='auto': {asked}")


def _orders() -> dict[str, list[Backend]]:
    """Return the backends of each kind of target in the order in which they are asked; no kind without any."""
    manager = get_manager()
    orders = {kind: order_of_auto(manager, kind) for kind in manager.target_kinds()}
    return {kind: order for kind, order in orders.items() if order}


def _positions(info: BackendInfo, orders: Mapping[str, Sequence[Backend]]) -> dict[str, int]:
    """Return a plugin's place among those that are asked, from 1, by kind of target."""
    names = {kind: [each.name for each in order] for kind, order in orders.items()}
    return {kind: order.index(info.name) + 1 for kind, order in names.items() if info.name in order}


def describe(infos: Sequence[BackendInfo]) -> list[str]:
    """Format the facts of each plugin, then its purpose or why it cannot be used."""
    heads = align_rows([(info.name, info.state, _parts(info), f"{info.dist} {info.version}") for info in infos])
    bodies = [info.reason.splitlines() or [info.summary] for info in infos]
    hints = [[f"→ {info.hint}"] if info.hint and info.state != "active" else [] for info in infos]
    lines = [
        [head.replace(f" {info.state} ", f" {click.style(info.state, COLORS.get(info.state))} ", 1)]
        + [f"    {line}" for line in (*body, *hint) if line]
        for info, head, body, hint in zip(infos, heads, bodies, hints, strict=True)
    ]
    return list(chain.from_iterable(lines))


def _parts(info: BackendInfo) -> str:
    parts = ", ".join(part.replace("_", " ") for part in info.provides) or "?"
    order = f", priority {info.priority}" if info.priority else ""  # who is asked first, of those that state no cost
    return f"{parts} for {', '.join(info.targets)}{order}" if info.targets else parts
