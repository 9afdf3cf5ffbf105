"""CUDA's libraries on this machine: where each is, and of which major version of CUDA; two do not mix in one process.

A library is looked for, in this order: the path in its variable (`KERNELYARD_CUBLASLT_LIBRARY`); what the process has
loaded already (PyTorch's, say); wheels of NVIDIA; the toolkit in `CUDA_HOME` or `CUDA_PATH`; the system's library path;
and only then what cuda-pathfinder finds, where it is installed, because it loads what it looks for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from dataclasses import dataclass, replace
from pathlib import Path

from kernelyard.errors import BackendUnavailableError
from kernelyard.runtime.api import EnvironmentVariable

MAJORS = (13, 12)
PACKAGE = "nvidia"  # whose folders NVIDIA's wheels fill
MAPS = Path("/proc/self/maps")
SYSTEM = "the system's library path"
_LOADED = re.compile(r"(/\S*/lib(cublasLt|cublas|cudart|nvrtc|cudnn)\.so\.(\d+)\S*)")


@dataclass(frozen=True)
class CudaLibrary:
    """A library by the name that its file has (lib<name>.so).

    folders: where its wheels put it, in the package `nvidia`, by major version of CUDA. headers: likewise.
    variable: names the file. has_cuda_major: whether the number in its file's name is CUDA's major version.
    """

    name: str
    variable: EnvironmentVariable
    folders: tuple[tuple[int, str], ...]
    headers: tuple[tuple[int, str], ...] = ()
    has_cuda_major: bool = True


NVRTC = CudaLibrary(
    "nvrtc",
    EnvironmentVariable(
        "KERNELYARD_NVRTC_LIBRARY", "the path of NVRTC, which compiles CUDA", "the package's, else a toolkit's"
    ),
    ((13, "cu13/lib"), (12, "cuda_nvrtc/lib")),
    ((13, "cu13/include"), (12, "cuda_runtime/include")),
)
CUBLASLT = CudaLibrary(
    "cublasLt",
    EnvironmentVariable("KERNELYARD_CUBLASLT_LIBRARY", "the path of cuBLASLt", "the package's, else a toolkit's"),
    ((13, "cu13/lib"), (12, "cublas/lib")),
)
CUDNN = CudaLibrary(
    "cudnn",
    EnvironmentVariable("KERNELYARD_CUDNN_LIBRARY", "the path of cuDNN", "the package's, else a toolkit's"),
    ((0, "cudnn/lib"),),
    has_cuda_major=False,
)


@dataclass(frozen=True)
class Candidate:
    """A library that may be loaded: by path, for a major version of CUDA (0: not known), found at `source`.

    headers: the folders of headers of the same release, where they are known.
    """

    path: str
    major: int
    source: str
    headers: tuple[Path, ...] = ()


def candidates(library: CudaLibrary) -> Iterator[Candidate]:
    """Yield every place where a library is to be found, the preferred first."""
    named, installed = library.variable.get(), [*_find_in_wheels(library), *_find_in_toolkits(library)]
    if named:
        yield _with_headers(Candidate(named, _major(library, named), library.variable), installed)
        return  # what the user names is what they get, or an error
    yield from (
        _with_headers(each, installed) for each in find_loaded_libraries() if f"lib{library.name}.so" in each.path
    )
    yield from installed
    found = find_library(library.name)
    if found:
        yield Candidate(found, _major(library, found), SYSTEM)
    yield from _find_by_pathfinder(library)


def find_loaded_libraries() -> list[Candidate]:
    """Return the libraries of CUDA that this process has loaded."""
    try:
        text = MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = dict.fromkeys(_LOADED.findall(text))
    return [Candidate(path, 0 if name == "cudnn" else int(major), "loaded already") for path, name, major in found]


def _with_headers(candidate: Candidate, installed: Sequence[Candidate]) -> Candidate:
    """Return a candidate with the headers of the wheel or toolkit that its file is of, if it is of one."""
    file = Path(candidate.path).resolve()
    headers = next((each.headers for each in installed if Path(each.path).resolve() == file), ())
    return replace(candidate, headers=headers)


def _find_in_wheels(library: CudaLibrary) -> Iterator[Candidate]:
    package = importlib.util.find_spec(PACKAGE)
    headers = dict(library.headers)
    for root in package.submodule_search_locations or () if package else ():
        for major, folder in library.folders:
            include = Path(root, headers[major]) if major in headers else None
            for path in sorted(Path(root, folder).glob(f"lib{library.name}.so.*")):
                yield Candidate(str(path), major, "a wheel", (include,) if include and include.is_dir() else ())


def _find_by_pathfinder(library: CudaLibrary) -> Iterator[Candidate]:
    try:
        path = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(library.name).abs_path
    except Exception:  # not installed, or nothing found: it has an error for each reason
        return
    yield Candidate(path, _major(library, path), "cuda-pathfinder")


def _find_in_toolkits(library: CudaLibrary) -> Iterator[Candidate]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = Path(os.environ.get(variable, ""))
        for path in sorted(root.glob(f"lib64/lib{library.name}.so.*")) if os.environ.get(variable) else ():
            include = root / "include"
            yield Candidate(str(path), _major(library, str(path)), variable, (include,) if include.is_dir() else ())


def _major(library: CudaLibrary, path: str) -> int:
    found = re.search(r"\.so\.(\d+)", path) if library.has_cuda_major else None
    return int(found[1]) if found else 0


def major_in_use() -> tuple[int, str]:
    """Return the major version of CUDA that this process is bound to, and why; 0 where it is free."""
    for each in find_loaded_libraries():
        if each.major:
            return each.major, f"{each.path} is loaded"
    found = next(candidates(NVRTC), None)
    return (found.major, f"NVRTC is {found.path}") if found is not None and found.major else (0, "")


def usable(library: CudaLibrary, install_hint: str) -> Sequence[Candidate]:
    """Return the places of a library that go with what this process uses, the preferred first.

    Raises: BackendUnavailableError where it is here for other major versions alone, with the way out.
    """
    found = list(candidates(library))
    major, reason = major_in_use()
    fitting = [each for each in found if not major or each.major in (0, major)]
    # A name on the system's path may not be there: it stands for nothing until it is loaded.
    known = [each for each in found if each.source != SYSTEM]
    if known and not any(each in fitting for each in known):
        raise BackendUnavailableError(
            "two major versions of CUDA cannot be mixed in one process",
            where=library.name,
            found=f"{known[0].path} ({known[0].source}), but {reason}",
            expected=f"{library.name} for CUDA {major}",
            hint=install_hint,
        )
    return fitting
