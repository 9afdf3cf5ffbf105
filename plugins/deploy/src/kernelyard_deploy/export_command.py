"""`kernelyard export`: an artifact in the forms that other systems load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kernelyard.cli.options import json_option
from kernelyard.cli.output import print_json
from kernelyard_deploy.facts import Facts
from kernelyard_deploy.forms import FORMS, export_all
from kernelyard_deploy.manifest import describe, read_manifest
from kernelyard_deploy.wheel import export_wheel

FACTS = {
    "name": "The model's name (default: that of the file).",
    "version": "Its version: numbers with dots (default: 1.0).",
    "license": "Its licence, as an SPDX expression.",
    "author": "Who made it.",
    "source": "Where it comes from: an address, or a revision.",
    "description": "One line on what it does.",
    "batch": "The symbolic size whose rows are independent.",
}


def _form_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each form, and for each fact; the function gets them by name."""
    for name, text in reversed(FACTS.items()):
        function = click.option(f"--{name}", metavar="TEXT", help=text)(function)
    for name, form in reversed(FORMS.items()):
        folder = click.Path(path_type=Path, file_okay=False)
        function = click.option(f"--{name}", f"to_{name}", metavar="DIR", type=folder, help=f"Write {form.summary}.")(
            function
        )
    return function


@click.command("export")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--kyar", metavar="FILE", type=click.Path(path_type=Path), help="Write a copy of the artifact with this metadata."
)
@_form_options
@click.option(
    "--size", "sizes", multiple=True, metavar="NAME=LEAST:MOST", help="Bounds of a symbolic size; repeatable."
)
@click.option(
    "--warm-up", multiple=True, metavar="NAME=N,...", help="Sizes to prepare before the first request; repeatable."
)
@click.option(
    "--wheel",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a Python wheel that holds the model.",
)
@click.option(
    "--with",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    help="With --wheel: another artifact to include; repeatable.",
)
@click.option(
    "--code",
    multiple=True,
    type=click.Path(path_type=Path),
    help="With --wheel: a Python module to include; repeatable.",
)
@click.option(
    "--requires", multiple=True, metavar="NAME>=N", help="With --wheel: a dependency of that module; repeatable."
)
@json_option
def command(
    artifact: Path,
    kyar: Path | None,
    sizes: Sequence[str],
    warm_up: Sequence[str],
    wheel: Path | None,
    others: Sequence[Path],
    code: Sequence[Path],
    requires: Sequence[str],
    as_json: bool,
    **given: Any,
) -> None:
    """Export ARTIFACT for other systems: each option with a DIR writes one form of it.

    Metadata given here (name, version, licence, ...) replaces the artifact's own. Without a form to write, prints the
    artifact's manifest.
    """
    manifest = read_manifest(artifact)
    facts = _facts(manifest.facts, given, sizes, warm_up)
    folders = [(form, given[f"to_{form}"]) for form in FORMS if given[f"to_{form}"] is not None]
    if wheel is None and (others or code or requires):
        raise click.UsageError("--with, --code and --requires are of --wheel")
    if not folders and kyar is None and wheel is None:
        print_json(manifest.to_json())
        return
    written: list[Path] = []
    if kyar is not None:
        describe(artifact, kyar, facts)
        written.append(kyar)
    written += export_all(artifact, folders, facts)
    if wheel is not None:
        written.append(export_wheel([artifact, *others], wheel, facts, code=code, requires=requires))
    if as_json:
        print_json({"written": [str(path) for path in written], "facts": facts.to_json()})
        return
    for path in written:
        click.echo(path)


def _facts(known: Facts, given: Mapping[str, Any], sizes: Sequence[str], warm_up: Sequence[str]) -> Facts:
    """Return the facts that the artifact has, with those of the command line in their place."""
    changes = {name: given[name] for name in FACTS if given[name] is not None}
    changes |= {"sizes": dict(map(_bounds, sizes))} if sizes else {}
    changes |= {"warm_up": tuple(map(_values, warm_up))} if warm_up else {}
    return replace(known, **changes)


def _bounds(text: str) -> tuple[str, tuple[int, int]]:
    name, _, bounds = text.partition("=")
    least, _, most = bounds.partition(":")
    if not name or not least.isdecimal() or not most.isdecimal():
        raise click.BadParameter(f"{text!r}; write NAME=LEAST:MOST", param_hint="--size")
    return name, (int(least), int(most))


def _values(text: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not name or not value.isdecimal():
            raise click.BadParameter(f"{text!r}; write NAME=N,NAME=N", param_hint="--warm-up")
        values[name] = int(value)
    return values
