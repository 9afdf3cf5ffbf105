"""From CUDA C++ to a cubin: by nvcc (`NVCC`, else what is found), or by NVRTC. Neither needs a GPU."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.errors import ToolchainError
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.jit.toolchain import Toolchain
from kernelyard_cuda import nvrtc
from kernelyard_cuda.libraries import NVRTC

if TYPE_CHECKING:
    from logging import Logger

INSTALL_HINT = "pip install nvidia-cuda-nvrtc-cu12, or set NVCC to the compiler of a CUDA toolkit"
CUDA = Toolchain("CUDA", "NVCC", ("nvcc",), INSTALL_HINT)
FLAGS = ("--std=c++17",)
CACHE = DiskCache("cubins")


def compile_cubin(
    source: str, arch: str, options: Sequence[str] = (), folders: Sequence[Path] = (), compiler: str | None = None
) -> bytes:
    """Return the cubin of CUDA C++ text for GPUs of `arch` ("sm_90"). folders: where headers are looked for.

    Raises: ToolchainError with the line that installs a compiler, or with what the compiler said.
    """
    words = [*FLAGS, *(f"-I{folder.absolute()}" for folder in folders), *options]
    try:
        command = CUDA.find(compiler)
    except ToolchainError as missing:
        library = None if compiler or os.environ.get(CUDA.variable) else nvrtc.find()
        if library is None:
            raise
        failure = nvrtc.failure(library[0])
        if failure is not None:
            raise _unusable(failure, missing) from failure
        return _compile_with_nvrtc(*library, source, arch, words)
    return _compile_with_nvcc(command, source, arch, words)


def _compile_with_nvrtc(library: str, headers: Sequence[Path], source: str, arch: str, words: Sequence[str]) -> bytes:
    found = [f"-I{folder}" for folder in headers]
    return nvrtc.compile_cubin(library, source, [f"--gpu-architecture={arch}", *words, *found])


def _compile_with_nvcc(command: Sequence[str], source: str, arch: str, words: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kernelyard-") as name:
        folder = Path(name)
        (folder / "extern.cu").write_text(source, encoding="utf-8")
        CUDA.run((*command, "-cubin", f"-arch={arch}", *words, "extern.cu", "-o", "extern.cubin"), folder)
        return (folder / "extern.cubin").read_bytes()


@dataclass(frozen=True)
class KernelCompiler:
    """A compiler of kernels without headers of their own; its cubins are kept in the cache of this machine.

    name: the compiler, with its version. nvcc: the words that call it; none for NVRTC.
    """

    name: str
    library: str = ""
    headers: tuple[Path, ...] = ()
    nvcc: tuple[str, ...] = ()

    def archs(self) -> tuple[str, ...]:
        """Return the architectures that it compiles for, such as "sm_90". Raises: ToolchainError."""
        if not self.nvcc:
            return nvrtc.archs(self.library)
        return tuple(CUDA.run((*self.nvcc, "--list-gpu-code"), Path.cwd()).split())

    def cubin(self, source: str, arch: str, options: Sequence[str] = ()) -> bytes:
        """Return the cubin of CUDA C++ text. Raises: ToolchainError with what the compiler said."""
        words = [*FLAGS, *options]
        key = "\n".join((self.name, arch, *words, source))
        found = CACHE.get(key)
        if found is None:
            if self.nvcc:
                found = _compile_with_nvcc(self.nvcc, source, arch, words)
            else:
                found = _compile_with_nvrtc(self.library, self.headers, source, arch, words)
            CACHE.put(key, found)
        return found


def find_kernel_compiler() -> KernelCompiler | None:
    """Return the compiler that `NVCC` names, else NVRTC, which takes a fraction of nvcc's time, else nvcc, if any.

    An NVRTC that cannot compile an empty kernel gives way to nvcc with a warning, unless its own variable names it.
    Raises: ToolchainError where `NVCC` names none, and for compilers that do not run.
    """
    is_named = bool(os.environ.get(CUDA.variable))
    library = None if is_named else nvrtc.find()
    failure = nvrtc.failure(library[0]) if library is not None else None
    if library is not None and failure is None:
        return KernelCompiler(f"NVRTC {nvrtc.version(library[0])} ({library[0]})", *library)
    if failure is not None and os.environ.get(NVRTC.variable):
        raise _unusable(failure) from failure
    try:
        command = CUDA.find()
    except ToolchainError as missing:
        if failure is not None:
            raise _unusable(failure, missing) from failure
        if is_named:
            raise
        return None
    if failure is not None:
        _log().warning("NVRTC cannot compile, and %s is used: %s", command[0], failure)
    said = CUDA.run((*command, "--version"), Path.cwd())
    version = re.search(r"release ([\d.]+)", said)
    return KernelCompiler(f"nvcc {version[1] if version else said.strip()} ({command[0]})", nvcc=command)


def _unusable(failure: ToolchainError, missing: ToolchainError | None = None) -> ToolchainError:
    """Return the error that names each compiler that was tried: NVRTC, and nvcc unless it was excluded."""
    tried = f"NVRTC: {failure.message}: {' '.join(str(failure.found).split())}"
    return ToolchainError(
        "no CUDA compiler is usable",
        where=failure.where,
        found=tried if missing is None else f"{tried}; nvcc: {missing.message}",
        hint=INSTALL_HINT,
    )


def _log() -> Logger:
    import logging  # takes long, for what hardly ever happens

    return logging.getLogger(__name__)
