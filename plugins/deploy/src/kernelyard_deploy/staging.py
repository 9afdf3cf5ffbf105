"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelyard_deploy.errors import ExportError


@contextmanager
def stage(target: Path) -> Iterator[Path]:
    """Give a place beside the target to write to, which becomes the target when the block ends without an error.

    Raises: ExportError where the target is there already (an empty folder is none), or cannot be written.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ExportError("the place is taken", where=str(target), hint="remove it, or export to another place")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(target.parent / f".{target.name}.{os.urandom(6).hex()}.tmp") as place:
            yield place
            os.replace(place, target)
    except OSError as error:
        raise ExportError(f"cannot write {target}", found=error.strerror or str(error)) from error


@contextmanager
def _temporary(place: Path) -> Iterator[Path]:
    """Give a place, and remove what is there in the end."""
    try:
        yield place
    finally:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
