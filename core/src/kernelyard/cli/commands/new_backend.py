"""`kernelyard new-backend NAME`: a backend of one's own, made from the template."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click

import kernelyard
from kernelyard.cli.options import json_option
from kernelyard.cli.output import print_json
from kernelyard.errors import PluginError

TEMPLATE_NAME = "acme"
RESERVED = ("acme", "auto", "core", "kernelyard", "none", "reference", "view")  # words with a meaning of their own
NAME = re.compile(r"(?=.{1,60}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "build", "dist", "*.egg-info")


@click.command("new-backend")
@click.argument("name")
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Where to (default: kernelyard-NAME).")
@json_option
def command(name: str, output: Path | None, as_json: bool) -> None:
    """Write the package of a new backend: one pattern, codegen, a runtime in NumPy, tests."""
    folder = output or Path(f"kernelyard-{name}")
    new_backend(name, folder)
    if as_json:
        print_json({"name": name, "folder": str(folder)})
        return
    click.echo(f"wrote {folder}; now:")
    click.echo(f"  pip install -e '{folder}[test]'\n  pytest {folder / 'tests'}")
    click.echo(f"  pytest --pyargs kernelyard.testing --backend {name}")


def new_backend(name: str, folder: Path) -> None:
    """Write the package `kernelyard-NAME` to a folder that is not there yet.

    Raises: PluginError for a name that cannot be used, and when the folder is there.
    """
    check_name(name)
    if folder.exists():
        raise PluginError(
            "nothing is overwritten", where=str(folder), found="it exists", hint="choose another --output"
        )
    shutil.copytree(template(), folder, ignore=LEFT_OUT)
    words = _name_replacements(name)
    any_word = re.compile("|".join(map(re.escape, words)))
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        text = any_word.sub(lambda match: words[match[0]], path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
    # The deepest first: a folder's own renaming changes the paths of what is in it.
    for path in sorted(folder.rglob(f"*{TEMPLATE_NAME}*"), key=lambda path: -len(path.parts)):
        path.rename(path.with_name(path.name.replace(TEMPLATE_NAME, name.replace("-", "_"))))


def check_name(name: str) -> None:
    """Check the name. Raises: PluginError for one that is not a word, is reserved, or belongs to a plugin."""
    from kernelyard.plugins.discovery.manager import GROUP
    from kernelyard.runtime.installed.entry_points import distribution_of, find

    if not NAME.fullmatch(name):
        expected = "up to 60 lower-case letters and digits, beginning with a letter, words joined by single hyphens"
        raise PluginError(f"{name!r} is not a valid backend name", expected=expected)
    if name in RESERVED:
        raise PluginError(f"the name {name!r} is reserved", expected=f"none of {', '.join(RESERVED)}")
    taken = [" ".join(distribution_of(entry)) for entry in find(GROUP).entries if entry.name == name]
    if taken:
        raise PluginError(f"the name {name!r} is taken by an installed plugin", found=taken[0], hint="choose another")


def template() -> Path:
    """Return the folder of the template: in the installed package, or in the repository where that is installed in
    place.
    """
    package = Path(kernelyard.__file__).parent
    shipped, in_place = package / "cli" / "template", package.parents[2] / "plugins" / "_template"
    return shipped if shipped.exists() else in_place


def _name_replacements(name: str) -> dict[str, str]:
    """Map the template's names to those of the new backend: package, in prose, class names, plain."""
    package = name.replace("-", "_")
    return {
        f"kernelyard_{TEMPLATE_NAME}": f"kernelyard_{package}",
        TEMPLATE_NAME.upper(): name,
        TEMPLATE_NAME.capitalize(): "".join(word.capitalize() for word in name.split("-")),
        TEMPLATE_NAME: name,
    }
