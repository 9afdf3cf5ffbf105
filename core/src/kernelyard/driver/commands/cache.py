"""`kernelyard cache`: what is cached on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from kernelyard.driver.commands.common import json_option, print_json
from kernelyard.runtime.installed.disk_cache import (
    SIZE_VARIABLE,
    cache_folder,
    cache_folders,
    cache_size,
    clear_cache,
    max_bytes,
)
from kernelyard.runtime.text_table import aligned

# What each cache of the core is for; plugins name their own.
PURPOSES = {
    "c": "C libraries of regions",
    "placements": "measured placements",
    "plugins": "verdicts of plugins' probes",
    "runtime": "helper code of the run time",
}


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete the entries; what needs them is compiled again.")
@click.option("--only", multiple=True, metavar="NAME", help="Of this cache alone; may be repeated.")
@json_option
def command(clear: bool, only: tuple[str, ...], as_json: bool) -> None:
    """Show the caches of this machine with their sizes, or clear them. Deleting them is always safe."""
    folders = _folders(only)
    counted = {name: (clear_cache(folder) if clear else cache_size(folder)) for name, folder in folders.items()}
    if as_json:
        facts = {"folder": str(cache_folder()), "limit_bytes": max_bytes(), "cleared": clear}
        sizes = {name: {"entries": entries, "bytes": nbytes} for name, (entries, nbytes) in counted.items()}
        print_json({**facts, "caches": sizes})
        return
    limit = f"at most {max_bytes() / 1e6:.0f} MB each" if max_bytes() else f"off ({SIZE_VARIABLE}=0)"
    click.echo(f"{cache_folder()}: {limit}")
    rows = [("cleared" if clear else "cache", "", "", "")]
    rows += [
        (name, f"{entries} entries", f"{nbytes / 1e6:.1f} MB", PURPOSES.get(name, ""))
        for name, (entries, nbytes) in counted.items()
    ]
    for line in aligned(rows) if counted else ["nothing is cached"]:
        click.echo(line.rstrip())


def _folders(only: Sequence[str]) -> dict[str, Path]:
    """Return the folders of the caches of these names, of all for none. Raises: BadParameter."""
    found = {folder.name: folder for folder in cache_folders()}
    unknown = [name for name in only if name not in found]
    if unknown:
        known = ", ".join(found) or "there is none"
        raise click.BadParameter(f"no cache is called {unknown[0]!r}; known: {known}", param_hint="--only")
    return {name: folder for name, folder in found.items() if not only or name in only}
