"""C: the artifact as a shared library, with its header and a program that shows its signatures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import kernelyard as ky
from kernelyard.runtime.api import TensorInfo
from kernelyard.runtime.export import get_include
from kernelyard_deploy.manifest import Manifest

HEADER = "kernelyard.h"
README = """{name} {version} as a C library

    cc program.c -I. -L. -l{library} -Wl,-rpath,'$ORIGIN' -o program

Functions:
{functions}
"""


def write(manifest: Manifest, artifact: Path, folder: Path) -> None:
    """Write the library of an artifact, `kernelyard.h` and a README into a folder.

    Raises: as `Executable.export_library`; a function that needs Python is an error here.
    """
    folder.mkdir()
    library = re.sub(r"\W", "_", manifest.facts.name, flags=re.ASCII)
    ky.load(artifact).export_library(folder / f"lib{library}.so", standalone=True)
    shutil.copyfile(Path(get_include(), HEADER), folder / HEADER)
    functions = "\n".join(
        f"    {each.name}({_list_tensors(each.inputs)}) -> ({_list_tensors(each.outputs)})"
        for each in manifest.functions
    )
    facts = manifest.facts
    text = README.format(name=facts.name, version=facts.version, library=library, functions=functions)
    (folder / "README.txt").write_text(text, encoding="utf-8")


def _list_tensors(infos: tuple[TensorInfo, ...]) -> str:
    return ", ".join(f"{info.name}: {info.dtype} {list(info.shape)}" for info in infos)
