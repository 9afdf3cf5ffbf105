"""Open the model or artifact that a command is given, and check where its result goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.cli.options import CompileOptions
from kernelyard.errors import ArtifactError

if TYPE_CHECKING:
    from kernelyard.runtime.execute.executable import Executable

ARTIFACT_SUFFIX = ".kyar"


def open_executable(path: Path, how: CompileOptions, threads: int | None) -> Executable:
    """Load an artifact or a shared library that holds one, or compile a model."""
    if is_artifact(path):
        from kernelyard.runtime.artifact.kyar import load

        how.refuse(path)
        return load(path, threads=threads)
    from kernelyard.driver.compile import compile as compile_model

    exe = compile_model(path, **how.arguments())
    exe.threads = threads
    return exe


def check_output(output: Path, model: Path) -> None:
    """Check the path of an output file. Raises: ArtifactError without a folder, or over the model."""
    if not output.parent.is_dir():
        raise ArtifactError(f"cannot write {output}", found=f"there is no folder {output.parent}")
    if os.path.exists(model) and os.path.exists(output) and output.samefile(model):
        raise ArtifactError(f"cannot write {output}", found="it is the model", hint="give the result another name: -o")


def is_artifact(path: Path) -> bool:
    """Return True for an artifact and for a shared library, by what is in the file; what cannot be read is neither."""
    from kernelyard.runtime.artifact.container import is_container

    try:
        return is_container(path)
    except ArtifactError:
        return False
