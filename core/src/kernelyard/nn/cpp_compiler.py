"""The user's C++ compiler: from source text to an object, from an object to a shared library.

It is the command in `CXX`, else the first of `c++`, `g++`, `clang++`. Headers of dlpack and of tvm-ffi, with the macro
that exports functions, are found without further ado: the package apache-tvm-ffi has them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernelyard.errors import ToolchainError

COMPILERS = ("c++", "g++", "clang++")
INSTALL_HINT = "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), or set CXX to a C++ compiler"
# Equal sources give equal objects: names are not random, and folders of this machine are left out.
COMPILE_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-frandom-seed=kernelyard")
LINK_FLAGS = ("-shared", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-z,defs")
TIMEOUT_SECONDS = 600
MAX_MESSAGE = 4000


def find_compiler(command: str | None = None) -> tuple[str, ...]:
    """The words that call the C++ compiler: `command`, or the one of this machine.

    Raises: ToolchainError with the line that installs one.
    """
    chosen = command or os.environ.get("CXX", "").strip()
    for name in (chosen,) if chosen else COMPILERS:
        words = tuple(shlex.split(name))
        found = shutil.which(words[0])
        if found:
            return (found, *words[1:])
    raise ToolchainError(
        f"there is no C++ compiler called {chosen}" if chosen else "there is no C++ compiler here",
        expected=None if chosen else ", ".join(COMPILERS),
        hint=INSTALL_HINT,
    )


def include_folders() -> tuple[Path, ...]:
    """The folders of the headers that sources may include."""
    from tvm_ffi import libinfo

    return tuple(dict.fromkeys(map(Path, (libinfo.find_include_path(), libinfo.find_dlpack_include_path()))))


def compile_object(
    source: str, options: Sequence[str] = (), folders: Sequence[Path] = (), compiler: str | None = None
) -> bytes:
    """The object file of C++ text. folders: where else headers are looked for.

    Raises: ToolchainError with what the compiler said.
    """
    command = find_compiler(compiler)
    includes = [path.absolute() for path in (*folders, *include_folders())]
    words = [word for path in includes for word in (f"-I{path}", f"-ffile-prefix-map={path}=include")]
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        (folder / "extern.cpp").write_text(source, encoding="utf-8")
        _run((*command, *COMPILE_FLAGS, *words, *options, "-c", "extern.cpp", "-o", "extern.o"), folder)
        return (folder / "extern.o").read_bytes()


def link_library(object_file: bytes, options: Sequence[str] = (), compiler: str | None = None) -> bytes:
    """The shared library of an object file. options: for the linker, such as `-lblas`.

    Raises: ToolchainError with what the linker said.
    """
    from tvm_ffi import libinfo

    command = find_compiler(compiler)
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        (folder / "extern.o").write_bytes(object_file)
        linked = ("extern.o", *options, libinfo.find_libtvm_ffi())
        _run((*command, *LINK_FLAGS, "-o", "extern.so", *linked), folder)
        return (folder / "extern.so").read_bytes()


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError("the C++ compiler cannot be run", where=command[0], found=error) from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise ToolchainError(
            "the C++ compiler failed",
            where=command[0],
            found=message[:MAX_MESSAGE] or f"exit status {done.returncode}",
        )
