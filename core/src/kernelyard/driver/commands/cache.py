"""`kernelyard cache`: what is cached on this machine."""

from __future__ import annotations

import click

from kernelyard.driver.commands.common import json_option, print_json
from kernelyard.runtime.installed.disk_cache import all_caches, cache_folder, clear_cache, max_bytes
from kernelyard.runtime.text_table import aligned

# What each cache of the core is for; plugins name their own.
PURPOSES = {
    "c": "C libraries of regions",
    "plugins": "verdicts of plugins' probes",
    "runtime": "helper code of the run time",
}


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete the entries; what needs them is compiled again.")
@click.option("--only", multiple=True, metavar="NAME", help="Of this cache alone; may be repeated.")
@json_option
def command(clear: bool, only: tuple[str, ...], as_json: bool) -> None:
    """Show the caches of this machine with their sizes, or clear them. Deleting them is always safe."""
    found = {use.folder.name: use for use in all_caches() if use.folder is not None}
    unknown = [name for name in only if name not in found]
    if unknown:
        known = ", ".join(found) or "there is none"
        raise click.BadParameter(f"no cache is called {unknown[0]!r}; known: {known}", param_hint="--only")
    chosen = {name: use for name, use in found.items() if not only or name in only}
    if clear:
        removed = {name: clear_cache(use.folder) for name, use in chosen.items() if use.folder is not None}
        counted = {name: {"entries": entries, "bytes": nbytes} for name, (entries, nbytes) in removed.items()}
    else:
        counted = {name: {"entries": use.entries, "bytes": use.nbytes} for name, use in chosen.items()}
    if as_json:
        facts = {"folder": str(cache_folder()), "limit_bytes": max_bytes(), "cleared": clear}
        print_json({**facts, "caches": counted})
        return
    rows = [
        (name, f"{use['entries']} entries", f"{use['bytes'] / 1e6:.1f} MB", PURPOSES.get(name, ""))
        for name, use in counted.items()
    ]
    limit = f"at most {max_bytes() / 1e6:.0f} MB each" if max_bytes() else "off (KERNELYARD_CACHE_MB=0)"
    click.echo(f"{cache_folder()}: {limit}")
    for line in aligned([("cleared" if clear else "cache", "", "", "")] + rows) if rows else ["nothing is cached"]:
        click.echo(line.rstrip())
