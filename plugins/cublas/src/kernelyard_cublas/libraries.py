"""Where libcublasLt is, and which of several it is to be: CUDA 12 and CUDA 13 do not mix in one process.

Looked for, in this order: the path in `KERNELYARD_CUBLASLT_LIBRARY`; what the process has loaded already (PyTorch's,
say); the wheels `nvidia-cublas-cu12` and `nvidia-cublas`; what cuda-pathfinder finds, where it is installed; the
system's library path.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from kernelyard.errors import BackendUnavailableError
from kernelyard.runtime import nvrtc
from kernelyard_cublas._native import LtLibrary

VARIABLE = "KERNELYARD_CUBLASLT_LIBRARY"
MAJORS = (13, 12)
# Folders of the package `nvidia` that the wheels of a major version fill.
WHEEL_FOLDERS = {13: "cu13/lib", 12: "cublas/lib"}
MAPS = Path("/proc/self/maps")
_LOADED = re.compile(r"(/\S*/lib(?:cublasLt|cublas|cudart|nvrtc)\.so\.(\d+)\S*)")
INSTALL_HINT = "pip install 'kernelyard-cublas[cu12]' or 'kernelyard-cublas[cu13]', as the other CUDA libraries here"


@dataclass(frozen=True)
class Candidate:
    """A library that may be loaded: by path, of a major version (0: not known), found at `source`."""

    path: str
    major: int
    source: str


def loaded_libraries() -> list[Candidate]:
    """The libraries of CUDA that this process has loaded."""
    try:
        text = MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [Candidate(path, int(major), "loaded already") for path, major in dict.fromkeys(_LOADED.findall(text))]


def candidates() -> Iterator[Candidate]:
    """Every libcublasLt that there is to be found, the preferred first."""
    named = os.environ.get(VARIABLE)
    if named:
        yield Candidate(named, _major(named), VARIABLE)
        return  # what the user names is what they get, or an error
    yield from (each for each in loaded_libraries() if "libcublasLt" in each.path)
    package = importlib.util.find_spec("nvidia")
    for root in package.submodule_search_locations or () if package else ():
        for major, folder in WHEEL_FOLDERS.items():
            path = Path(root, folder, f"libcublasLt.so.{major}")
            if path.exists():
                yield Candidate(str(path), major, "a wheel")
    yield from _of_pathfinder()
    found = find_library("cublasLt")
    for name in (found, *(f"libcublasLt.so.{major}" for major in MAJORS)):
        if name:
            yield Candidate(name, _major(name), "the system's library path")


def _of_pathfinder() -> Iterator[Candidate]:
    try:
        path = importlib.import_module("cuda.pathfinder").find_nvidia_dynamic_lib("cublasLt")
    except Exception:  # not installed, older than that function, or nothing found: it has an error for each
        return
    yield Candidate(str(path), _major(str(path)), "cuda-pathfinder")


def _major(path: str) -> int:
    found = re.search(r"\.so\.(\d+)", path)
    return int(found[1]) if found else 0


def major_in_use() -> tuple[int, str]:
    """The major version of CUDA that this process is bound to, and why; 0 where it is free."""
    for each in loaded_libraries():
        return each.major, f"{each.path} is loaded"
    found = nvrtc.find()
    major = _major(found[0]) if found else 0
    return (major, f"NVRTC is {found[0]}") if found and major else (0, "")


def fitting(found: Sequence[Candidate], major: int) -> list[Candidate]:
    """Those of that major version, or of an unknown one; all where any will do."""
    return [each for each in found if not major or each.major in (0, major)]


def refusal() -> BackendUnavailableError | None:
    """Why the libraries here cannot be used together, if so; nothing is loaded."""
    # A name on the system's path may not be there: it stands for nothing until it is loaded.
    known = [each for each in candidates() if each.source != "the system's library path"]
    major, reason = major_in_use()
    if not known or fitting(known, major):
        return None
    return BackendUnavailableError(
        "two major versions of CUDA do not mix in one process",
        where="backend 'cublas'",
        found=f"{known[0].path} ({known[0].source}), but {reason}",
        expected=f"cuBLAS {major}",
        hint=f"pip install 'kernelyard-cublas[cu{major}]', and uninstall the other cuBLAS",
    )


def load_library() -> LtLibrary:
    """A library, newly opened: each device has a handle of its own.

    Raises: BackendUnavailableError naming every place that was tried.
    """
    mixed = refusal()
    if mixed is not None:
        raise mixed
    reasons: list[str] = []
    major, _ = major_in_use()
    for each in fitting(list(candidates()), major):
        try:
            return LtLibrary(each.path)
        except (OSError, AttributeError) as error:
            reasons.append(f"{each.source}: {error}")
    raise BackendUnavailableError(
        "no usable cuBLASLt library",
        where="backend 'cublas'",
        found="; ".join(reasons) or "none",
        expected="libcublasLt.so.12 or libcublasLt.so.13",
        hint=f'{INSTALL_HINT}; or run on kernelyard.cuda("emulator")',
    )


def version_text(version: int) -> str:
    """A version as people write it.

    Example:
        >>> version_text(120903), version_text(131000)
        ('12.9.3', '13.10.0')
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
