"""`kernelyard cache`: what is cached on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.cli.options import json_option, remote_cache_option
from kernelyard.cli.output import print_json
from kernelyard.runtime.installed.disk_cache import (
    SIZE_VARIABLE,
    cache_folder,
    cache_folders,
    cache_size,
    clear_cache,
    max_bytes,
)
from kernelyard.runtime.installed.plugin_cache import is_plugin_cache, plugin_files
from kernelyard.runtime.text_table import align_rows

if TYPE_CHECKING:
    from kernelyard.runtime.placement_decision import PlacementDecision

# What each cache of the core is for; plugins name their own.
PURPOSES = {
    "c": "C libraries of regions",
    "placements": "measured placements",
    "plugins": "verdicts of plugins' probes",
    "runtime": "helper code of the run time",
}


@click.command("cache")
@click.option("--clear", is_flag=True, help="Delete the entries; what needs them is compiled again.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this cache; may be repeated.")
@click.option("--placements", is_flag=True, help="List the measured placements.")
@click.option("--export", type=click.Path(path_type=Path), help="Add the measured placements to a file.")
@click.option(
    "--merge",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Add the placements of such a file.",
)
@remote_cache_option
@json_option
def command(
    clear: bool,
    only: tuple[str, ...],
    placements: bool,
    export: Path | None,
    merge: tuple[Path, ...],
    remote_cache: str | None,
    as_json: bool,
) -> None:
    """Show the caches of this machine with their sizes, or clear them. Deleting them is always safe.

    Measured placements are listed, exported and merged. What is merged goes to the remote cache, too."""
    if remote_cache and not merge:
        raise click.UsageError("--remote-cache goes with --merge: it says where else to put what is merged")
    if placements or export is not None or merge:
        if clear or only:
            raise click.UsageError("--clear and --only do not go with --placements, --export and --merge")
        _exchange(placements, export, merge, remote_cache, as_json)
        return
    _show(clear, only, as_json)


def _exchange(
    is_listed: bool, export: Path | None, merge: Sequence[Path], remote_cache: str | None, as_json: bool
) -> None:
    """Take over, save and list measured placements."""
    from kernelyard.driver.measured_placement import read_placements, save_placements
    from kernelyard.driver.placement_cache import iterate_remembered, remember

    groups = [read_placements(path) for path in merge]  # all of them, before one is kept
    for decisions in groups:
        remember(decisions, remote_cache)
    known = list(iterate_remembered())
    if export is not None:
        save_placements(export, known)
    facts: dict[str, Any] = {"merged": sum(map(len, groups)), "exported": len(known) if export is not None else 0}
    if as_json:
        print_json(facts | ({"placements": [each.to_json() for each in known]} if is_listed else {}))
        return
    for done, count in facts.items():
        if count:
            click.echo(f"{done} {count} placement{'s' if count > 1 else ''}")
    for line in _table(known) if is_listed else []:
        click.echo(line.rstrip())


def _table(decisions: Sequence[PlacementDecision]) -> list[str]:
    if not decisions:
        return ["no placement is remembered"]
    rows = [("model", "processor", "threads", "sizes", "placement")]
    rows += [
        (
            each.facts.get("model", "")[:12],
            each.facts.get("processor", ""),
            each.facts.get("threads", ""),
            each.facts.get("sizes", ""),
            each.summary.partition(": ")[2],
        )
        for each in decisions
    ]
    return list(align_rows(rows))


def _show(clear: bool, only: tuple[str, ...], as_json: bool) -> None:
    folders = _folders(only)
    counted = {name: _describe_size(folder, clear) for name, folder in folders.items()}
    if as_json:
        facts = {"folder": str(cache_folder()), "limit_bytes": max_bytes(), "cleared": clear}
        sizes = {name: {"entries": entries, "bytes": nbytes} for name, (entries, nbytes) in counted.items()}
        print_json({**facts, "caches": sizes})
        return
    limit = f"at most {max_bytes() / 1e6:.0f} MB each" if max_bytes() else f"off ({SIZE_VARIABLE}=0)"
    click.echo(f"{cache_folder()}: {limit}")
    rows = [("cleared" if clear else "cache", "", "", "")]
    rows += [
        (name, f"{entries} entries", f"{nbytes / 1e6:.1f} MB", _purpose(folders[name]))
        for name, (entries, nbytes) in counted.items()
    ]
    for line in align_rows(rows) if counted else ["nothing is cached"]:
        click.echo(line.rstrip())


def _describe_size(folder: Path, clear: bool) -> tuple[int, int]:
    """Return how many entries there are in a folder and of how many bytes; or were, after they have been deleted."""
    if not is_plugin_cache(folder):
        return clear_cache(folder) if clear else cache_size(folder)
    sizes: list[int] = []
    for file, status in plugin_files(folder):
        if clear:
            file.unlink(missing_ok=True)
        sizes.append(status.st_size)
    return len(sizes), sum(sizes)


def _purpose(folder: Path) -> str:
    return "files of that plugin and version" if is_plugin_cache(folder) else PURPOSES.get(folder.name, "")


def _folders(only: Sequence[str]) -> dict[str, Path]:
    """Return the folders of the caches of these names, of all for none. Raises: BadParameter."""
    found = {folder.name: folder for folder in cache_folders()}
    known = sorted({*PURPOSES, *found})  # those of the core, even where nothing is in them yet
    unknown = [name for name in only if name not in known]
    if unknown:
        raise click.BadParameter(f"no cache is called {unknown[0]!r}; known: {', '.join(known)}", param_hint="--only")
    return {name: folder for name, folder in found.items() if not only or name in only}
