"""The user's C compiler: found, called, and what it makes kept in a cache that only the user can write.

The compiler is the command in `CC`, else the first of `cc`, `gcc`, `clang`. The cache is the folder `c` of
`kernelyard.runtime.installed.disk_cache`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelyard.errors import ToolchainError
from kernelyard.runtime.abi.native_unit import NativeUnit, SharedLibrary
from kernelyard.runtime.installed.disk_cache import own_folder
from kernelyard.runtime.jit.toolchain import Toolchain

COMPILERS = ("cc", "gcc", "clang")
C = Toolchain(
    "C", "CC", COMPILERS, "apt install gcc (Debian, Ubuntu), dnf install gcc (Fedora), or set CC to a C compiler"
)
FAILED_HINT = "set CC to another compiler, or report this to the authors of the code generator"
# Code is position-independent, calls nothing that is not linked, and carries no build paths.
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-z,defs")


@dataclass(frozen=True)
class CCompiler:
    """A compiler's command, and the first line of what it says of itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> CCompiler:
    """Return the C compiler of this machine.

    Raises: ToolchainError with the line that installs one.
    """
    return _described(C.find())


@cache
def _described(command: tuple[str, ...]) -> CCompiler:
    lines = C.run((*command, "--version"), Path.cwd()).splitlines()
    return CCompiler(command, lines[0] if lines else "")


def compile_library(
    sources: Mapping[str, str],
    output: Path,
    objects: Sequence[bytes] = (),
    libraries: Sequence[SharedLibrary] = (),
    flags: Sequence[str] = (),
    files: Mapping[str, Path] | None = None,
) -> None:
    """Make a shared library of C sources (by file name), objects and libraries; complete or not there.

    files: further files that sources read, by the name they use.
    Raises: ToolchainError, BackendUnavailableError for a library that is not here.
    """
    if sys.platform != "linux":
        raise ToolchainError("shared libraries are made on Linux only", found=sys.platform, expected="linux")
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        for source, text in sources.items():
            (folder / source).write_text(text, encoding="utf-8")
        for file, target in (files or {}).items():
            (folder / file).symlink_to(target.absolute())
        for number, data in enumerate(objects):
            (folder / f"object{number}.o").write_bytes(data)
        inputs = [*(s for s in sources if s.endswith(".c")), *(f"object{n}.o" for n in range(len(objects)))]
        C.run((*compiler.command, *FLAGS, *flags, "-o", "out.so", *inputs, *_linked(libraries)), folder, FAILED_HINT)
        temporary = output.parent / f".{output.name}.{os.urandom(6).hex()}.tmp"
        try:
            shutil.copyfile(folder / "out.so", temporary)
            os.chmod(temporary, 0o755)
            os.replace(temporary, output)
        finally:
            temporary.unlink(missing_ok=True)


def _linked(libraries: Sequence[SharedLibrary]) -> list[str]:
    """Return the linker flags that find libraries now, and when the result is loaded."""
    words: list[str] = []
    for library in dict.fromkeys(libraries):
        path = library.locate()
        if os.path.isabs(path):
            words += [path, f"-Wl,-rpath,{os.path.dirname(path)}"]
        else:
            words.append(f"-l:{path}")
    # Loading a library brings its own needs; whether they are there is not known before.
    return [*words, "-Wl,--allow-shlib-undefined", "-lm"]


def cached_library(unit: NativeUnit) -> Path:
    """Return the unit as a shared library, compiled unless it was before by this compiler with these libraries.

    Raises: ToolchainError, BackendUnavailableError.
    """
    compiler = find_compiler()
    located = [(library.name, library.locate()) for library in unit.libraries]
    key = hashlib.sha256(repr((unit.source, compiler, FLAGS, located)).encode())
    for data in unit.objects:
        key.update(hashlib.sha256(data).digest())
    path = _cache_folder() / f"{key.hexdigest()}.so"
    if not path.exists():
        compile_library({"unit.c": unit.source}, path, unit.objects, unit.libraries)
    return path


def _cache_folder() -> Path:
    """Return a folder that nobody else can write to: code is loaded from it."""
    return own_folder("c") or _private_folder()


@cache
def _private_folder() -> Path:
    """Return a folder for this process, where there is no safe one that lasts."""
    owner_thread = tempfile.TemporaryDirectory(prefix="kernelyard-c-")
    _KEPT.append(owner_thread)
    return Path(owner_thread.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
