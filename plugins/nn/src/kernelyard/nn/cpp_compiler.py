"""The user's C++ compiler: from source text to an object, from an object to a shared library.

It is the command in `CXX`, else the first of `c++`, `g++`, `clang++`. Headers of dlpack and of tvm-ffi, with the macro
that exports functions, are found without further ado: the package apache-tvm-ffi has them. Installed distributions add
folders of headers by entry points of the group `kernelyard.headers`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from kernelyard.runtime.api import Toolchain

GROUP = "kernelyard.headers"
TVM_HEADER = "tvm/runtime/packed_func.h"
COMPILERS = ("c++", "g++", "clang++")
INSTALL_HINT = "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), or set CXX to a C++ compiler"
CPP = Toolchain("C++", "CXX", COMPILERS, INSTALL_HINT)
# Equal sources give equal objects: names are not random, and folders of this machine are left out.
COMPILE_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-frandom-seed=kernelyard")
LINK_FLAGS = ("-shared", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-z,defs")


def include_folders() -> tuple[Path, ...]:
    """Return the folders of the headers that sources may include."""
    from tvm_ffi import libinfo

    own = map(Path, (libinfo.find_include_path(), libinfo.find_dlpack_include_path()))
    return tuple(dict.fromkeys([*own, *(Path(entry.load()) for entry in entry_points(group=GROUP))]))


def compile_object(
    source: str, options: Sequence[str] = (), folders: Sequence[Path] = (), compiler: str | None = None
) -> bytes:
    """Return the object file of C++ text. folders: where else headers are looked for.

    Raises: ToolchainError with what the compiler said.
    """
    command = CPP.find(compiler)
    includes = [path.absolute() for path in (*folders, *include_folders())]
    words = [word for path in includes for word in (f"-I{path}", f"-ffile-prefix-map={path}=include")]
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        (folder / "extern.cpp").write_text(source, encoding="utf-8")
        flags = (*COMPILE_FLAGS, *words, *options)
        CPP.run((*command, *flags, "-c", "extern.cpp", "-o", "extern.o"), folder, _hint(source, includes))
        return (folder / "extern.o").read_bytes()


def _hint(source: str, folders: Sequence[Path]) -> str | None:
    """Return what to install for headers that a source includes, and which are not there."""
    is_there = any((folder / TVM_HEADER).is_file() for folder in folders)
    return (
        f"pip install kernelyard-tvm-compat, which has {TVM_HEADER}"
        if "tvm/runtime/" in source and not is_there
        else None
    )


def link_library(object_file: bytes, options: Sequence[str] = (), compiler: str | None = None) -> bytes:
    """Return the shared library of an object file. options: for the linker, such as `-lblas`.

    Raises: ToolchainError with what the linker said.
    """
    from tvm_ffi import libinfo

    command = CPP.find(compiler)
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        (folder / "extern.o").write_bytes(object_file)
        linked = ("extern.o", *options, libinfo.find_libtvm_ffi())
        CPP.run((*command, *LINK_FLAGS, "-o", "extern.so", *linked), folder)
        return (folder / "extern.so").read_bytes()
