"""Artifacts with the facts that they are published with."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from kernelyard_deploy.facts import Facts
from kernelyard_deploy.manifest import Manifest, describe, read_manifest

Place: TypeAlias = "str | os.PathLike[str]"


@contextmanager
def publish_artifact(artifact: Place, facts: Facts | None) -> Iterator[tuple[Manifest, Path]]:
    """Give the artifact with these facts in it, and its manifest; without facts it is the file as it is."""
    if facts is None:
        yield read_manifest(artifact), Path(artifact)
        return
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as folder:
        path = Path(folder, Path(artifact).name)
        yield describe(artifact, path, facts), path
