"""The user's C and C++ compilers: found, called, and what they make kept in a cache that only the user can write.

The compiler is the command in `CC`, else the first of `cc`, `gcc`, `clang`; that of C++ is the command in `CXX`, else
the first of `c++`, `g++`, `clang++`. The cache is the folder `c` of
`kernelyard.runtime.installed.disk_cache`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kernelyard.errors import ToolchainError
from kernelyard.runtime.abi.native_unit import NativeUnit, SharedLibrary
from kernelyard.runtime.installed.disk_cache import private_cache_folder
from kernelyard.runtime.jit.toolchain import Toolchain

COMPILERS = ("cc", "gcc", "clang")
C = Toolchain(
    "C", "CC", COMPILERS, "apt install gcc (Debian, Ubuntu), dnf install gcc (Fedora), or set CC to a C compiler"
)
CPP = Toolchain(
    "C++", "CXX", ("c++", "g++", "clang++"), "apt install g++ (Debian, Ubuntu), or set CXX to a C++ compiler"
)
FAILED_HINT = "set CC to another compiler, or report this to the authors of the code generator"
# Code is position-independent, calls nothing that is not linked, and carries no build paths.
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-z,defs")
LINKER_OPTIONS = ("-l", "-L", "-Wl,")


class _Language(NamedTuple):
    toolchain: Toolchain
    suffix: str
    standard: str


LANGUAGES = {"c": _Language(C, "c", "-std=gnu11"), "c++": _Language(CPP, "cpp", "-std=gnu++17")}


@dataclass(frozen=True)
class CCompiler:
    """A compiler's command, and the first line of what it says of itself."""

    command: tuple[str, ...]
    version: str


def find_compiler(language: str = "c") -> CCompiler:
    """Return the compiler of this machine.

    Raises: ToolchainError with the line that installs one.
    """
    return _describe(language, LANGUAGES[language].toolchain.find())


@cache
def _describe(language: str, command: tuple[str, ...]) -> CCompiler:
    lines = LANGUAGES[language].toolchain.run((*command, "--version"), Path.cwd()).splitlines()
    return CCompiler(command, lines[0] if lines else "")


def languages_for(architecture: str | None) -> Mapping[str, _Language]:
    """Return the languages with the compilers that make code for an architecture; None is this machine's.

    A compiler that `CC` or `CXX` names is taken to be one.
    """
    if architecture in (None, platform.machine()):
        return LANGUAGES
    hint = f"apt install g++-{architecture}-linux-gnu, or set CC and CXX to compilers for {architecture}"

    def crossing(language: _Language, name: str) -> _Language:
        kind = f"{architecture} {language.toolchain.language}"
        names = (f"{architecture}-linux-gnu-{name}",)
        return language._replace(toolchain=Toolchain(kind, language.toolchain.variable, names, hint))

    return {"c": crossing(LANGUAGES["c"], "gcc"), "c++": crossing(LANGUAGES["c++"], "g++")}


def compile_object(unit: NativeUnit, options: Sequence[str], tools: Mapping[str, _Language]) -> bytes:
    """Compile the source of a unit to a relocatable object. options: of the user, which come last.

    Raises: ToolchainError.
    """
    language = tools[unit.language]
    found = {header: header.locate() for header in unit.headers}
    folders = dict.fromkeys(f"-I{folder}" for folder in found.values() if folder is not None)
    missing = [header.hint for header, folder in found.items() if folder is None and header.hint]
    words = (*_fitting(options, unit.language), "-c", f"unit.{language.suffix}", "-o", "unit.o")
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        (folder / f"unit.{language.suffix}").write_text(unit.source, encoding="utf-8")
        command = (*language.toolchain.find(), language.standard, "-O1", "-fPIC", *unit.options, *folders)
        language.toolchain.run((*command, *words), folder, "; ".join(missing) or FAILED_HINT)
        return (folder / "unit.o").read_bytes()


def _fitting(options: Sequence[str], language: str) -> list[str]:
    """Return the options that compile this language: none of the linker's, and no standard of the other one."""
    is_other = {
        "c": lambda o: o.startswith("-std=") and "++" in o,
        "c++": lambda o: o.startswith("-std=") and "++" not in o,
    }
    return [_absolute(o) for o in options if not o.startswith(LINKER_OPTIONS) and not is_other[language](o)]


def _absolute(option: str) -> str:
    """Return an option whose path, if any, is that of a caller, as code is compiled in another folder."""
    name, path = option[:2], option[2:]
    return f"{name}{os.path.abspath(path)}" if name in ("-I", "-L") and path else option


def compile_library(
    sources: Mapping[str, str],
    output: Path,
    units: Sequence[NativeUnit] = (),
    flags: Sequence[str] = (),
    files: Mapping[str, Path] | None = None,
    options: Sequence[str] = (),
    architecture: str | None = None,
) -> None:
    """Make a shared library of C sources (by file name) and of units; complete or not there.

    files: further files that sources read, by the name they use. options: of the user, for the units and the linker.
    architecture: that the library is for, such as "aarch64"; None is this machine's.
    Raises: ToolchainError, BackendUnavailableError for a library that is not here.
    """
    if sys.platform != "linux":
        raise ToolchainError("shared libraries are made on Linux only", found=sys.platform, expected="linux")
    tools = languages_for(architecture)
    texts, objects = dict(sources), [data for unit in units for data in unit.objects]
    for number, unit in enumerate(units):
        if options or not _is_plain(unit):
            objects.append(compile_object(unit, options, tools))
        else:
            texts[f"unit{number}.c"] = unit.source
    libraries = [each for unit in units for each in unit.libraries]
    linked = [*_linker_flags(libraries, tools is not LANGUAGES), *_for_linker(units, options)]
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        _fill(folder, texts, objects, files or {})
        inputs = [*(n for n in texts if n.endswith(".c")), *(f"object{n}.o" for n in range(len(objects)))]
        words = (*tools["c"].toolchain.find(), *FLAGS, *flags, "-o", "out.so", *inputs, *linked)
        tools["c"].toolchain.run(words, folder, FAILED_HINT)
        temporary = output.parent / f".{output.name}.{os.urandom(6).hex()}.tmp"
        try:
            shutil.copyfile(folder / "out.so", temporary)
            os.chmod(temporary, 0o755)
            os.replace(temporary, output)
        finally:
            temporary.unlink(missing_ok=True)


def _fill(folder: Path, texts: Mapping[str, str], objects: Sequence[bytes], files: Mapping[str, Path]) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for number, data in enumerate(objects):
        (folder / f"object{number}.o").write_bytes(data)
    for name, target in files.items():
        (folder / name).symlink_to(target.absolute())


def _is_plain(unit: NativeUnit) -> bool:
    """Return True if the compiler needs no options for a unit."""
    return unit.language == "c" and not unit.headers and not unit.options


def _for_linker(units: Sequence[NativeUnit], options: Sequence[str]) -> list[str]:
    words = [_absolute(option) for option in options if option.startswith(LINKER_OPTIONS)]
    return [*words, *(["-lstdc++"] if any(unit.language == "c++" for unit in units) else [])]


def _linker_flags(libraries: Sequence[SharedLibrary], is_cross: bool) -> list[str]:
    """Return the linker flags that find libraries now, and when the result is loaded.

    is_cross: those of this machine are of no use; the compiler has its own, and the machine that loads it.
    """
    words: list[str] = []
    for library in dict.fromkeys(libraries):
        path = library.name if is_cross else library.locate()
        if os.path.isabs(path):
            words += [path, f"-Wl,-rpath,{os.path.dirname(path)}"]
        else:
            words.append(f"-l:{path}")
    # Loading a library brings its own needs; whether they are there is not known before.
    return [*words, "-Wl,--allow-shlib-undefined", "-lm"]


def compile_cached(unit: NativeUnit) -> Path:
    """Return the unit as a shared library, compiled unless it was before by this compiler with these libraries.

    Raises: ToolchainError, BackendUnavailableError.
    """
    compiler = find_compiler(unit.language)
    located = [(library.name, library.locate()) for library in unit.libraries]
    parts = unit.source, compiler, FLAGS, located
    if not _is_plain(unit):
        parts = *parts, unit.language, unit.options, [(header.name, header.locate()) for header in unit.headers]
    key = hashlib.sha256(repr(parts).encode())
    for data in unit.objects:
        key.update(hashlib.sha256(data).digest())
    path = _cache_folder() / f"{key.hexdigest()}.so"
    if not path.exists():
        compile_library({}, path, [unit])
    return path


def _cache_folder() -> Path:
    """Return a folder that nobody else can write to: code is loaded from it."""
    return private_cache_folder("c") or _private_folder()


@cache
def _private_folder() -> Path:
    """Return a folder for this process, where there is no safe one that lasts."""
    owner_thread = tempfile.TemporaryDirectory(prefix="kernelyard-c-")
    _KEPT.append(owner_thread)
    return Path(owner_thread.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
