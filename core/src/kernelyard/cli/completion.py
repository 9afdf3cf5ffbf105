"""Values that shells complete: backends, kinds of targets, precisions. Manifests tell them; no plugin is imported."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kernelyard.driver.session.precision import PRECISIONS
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.manifest import Manifest

OF_LISTS = ("backend", "code_generator")  # parts whose names a list of backends may have


def complete_backends(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return lists of backends that begin so: the last name of `a,b` is completed."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = {each.name for each in _manifests() if set(OF_LISTS) & set(each.provides)} - set(given)
    alone = () if comma else ("auto", "none")
    return [f"{before}{comma}{name}" for name in (*alone, *sorted(names)) if name.startswith(last)]


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the kinds of targets that plugins are for."""
    return _beginning({kind for each in _manifests() for kind in each.targets} | {"cpu"}, incomplete)


def complete_precision(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of precisions."""
    return _beginning(PRECISIONS, incomplete)


def _manifests() -> list[Manifest]:
    return [plugin.manifest for plugin in get_manager().plugins if plugin.manifest is not None]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
