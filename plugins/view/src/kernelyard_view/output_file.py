"""Write the file that a command was asked for; whether it can be is checked before the work is done."""

from __future__ import annotations

from pathlib import Path

import click


def check_output(path: Path) -> None:
    """Check that the folder of a file is there. Raises: click.BadParameter."""
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}", param_hint="-o")


def write_output(path: Path, text: str) -> None:
    """Write a file of text. Raises: click.BadParameter, with the system's reason."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint="-o") from error
